"""Section 5: MNIST with noisy labels and small networks."""
