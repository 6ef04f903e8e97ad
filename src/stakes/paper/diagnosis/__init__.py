"""Section 4: diagnoses from three blood tests."""
