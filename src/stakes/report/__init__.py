"""What people see of a finished run: one HTML file, from templates."""
