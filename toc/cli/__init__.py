"""The command line. Commands import what they need when they run: `toc --help` answers at once.

main            all commands       common_options  options of every command; errors become exit codes
output          tables and JSON    logs            logging, set up here and nowhere else
time_texts      times as text      signals         stops a process that serves
"""
