"""What the paper (Cobb, Roberts and Gal 2018) and its authors' code report, to stand beside our numbers."""

# 2 - utility of `calibrated`, by labels redrawn of 50; 10 seeds. The code's "standard" is not one: see
# docs/REPRODUCTION.md.
DIAGNOSIS = {10: 0.0024, 20: 0.0065, 30: 0.173, 40: 0.30}

# 1 - utility with optimal decisions, by noise and hidden units: standard, weighted, calibrated; 10 seeds.
DIGITS = {
    (0.0, 20): (0.0912, 0.0916, 0.0934), (0.0, 50): (0.0784, 0.0802, 0.0785), (0.0, 100): (0.0734, 0.0743, 0.0737),
    (0.1, 20): (0.1132, 0.1170, 0.1051), (0.1, 50): (0.1002, 0.1033, 0.0931), (0.1, 100): (0.0955, 0.0985, 0.0860),
    (0.25, 20): (0.1527, 0.1659, 0.1278), (0.25, 50): (0.1356, 0.1440, 0.1101), (0.25, 100): (0.1253, 0.1370, 0.1009),
    (0.5, 20): (0.2756, 0.3216, 0.2168), (0.5, 50): (0.2398, 0.2772, 0.1655), (0.5, 100): (0.2250, 0.2586, 0.1509),
}  # fmt: skip

# Their standard deviation over seeds, by noise, at its smallest; the one for 0.1 lies between its neighbours'.
DIGITS_SD = {0.0: 0.002, 0.1: 0.0032, 0.25: 0.005, 0.5: 0.01}

# Accuracy % and utility, by model and rule. The paper's argmax utility is that of deciding at random.
ROADS_TABLE_2 = {
    ("standard", "argmax"): (81.1, 0.619), ("standard", "optimal"): (78.1, 0.676),
    ("weighted", "argmax"): (82.1, 0.633), ("weighted", "optimal"): (79.6, 0.682),
    ("calibrated", "argmax"): (82.5, 0.652), ("calibrated", "optimal"): (81.8, 0.685),
}  # fmt: skip

# IOU with optimal decisions, the mean over images: standard, weighted, calibrated.
ROADS_TABLE_3 = {
    "Road": (0.85, 0.86, 0.86), "Pavement": (0.65, 0.66, 0.65), "Tree": (0.54, 0.55, 0.54), "Car": (0.28, 0.31, 0.39),
    "Pedestrian": (0.06, 0.09, 0.13), "mean": (0.37, 0.40, 0.42),
}  # fmt: skip
