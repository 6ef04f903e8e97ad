"""Tables whose outcome is a number: how much to order, when to service, what to quote."""
