"""Pure decisions of the scheduler: values in, values out."""
