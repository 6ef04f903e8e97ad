"""What decisions turned out to be worth, with intervals, and models side by side."""
