"""What `toc bench` and `toc demo` share: processes on a pipe, final rows, figures as text.

child     a process that speaks JSON lines and ends with its parent
worker    runs a Node inside such a process          rows    what the databases say at the end
figures   percentiles, spreads, histograms, sparklines
"""
