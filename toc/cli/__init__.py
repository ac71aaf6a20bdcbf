"""The command line. Commands import what they need when they run: `toc --help` answers at once.

main      all commands          frame     what every command has: options, errors, exit codes
output    tables and JSON       logs      logging, set up here and nowhere else
words     times in and out      signals   stopping a process that serves
"""
