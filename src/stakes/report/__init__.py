"""What people see of a run: the table on the terminal, figures, and the report."""
