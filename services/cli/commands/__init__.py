"""The commands, one family a file: arguments in, `app` functions called, answers shown."""
