"""The command line: `impala`. What it starts, it supervises; all else goes over HTTP."""
