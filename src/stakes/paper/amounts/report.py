"""The tables of the amounts experiment, from a saved Result, and what was found, in sentences."""

from collections.abc import Sequence
from itertools import product as pairs

import numpy as np

from stakes.paper.amounts.accuracy import FAMILIES
from stakes.paper.amounts.costs import COSTS, predicted_spread
from stakes.paper.amounts.data import MADE
from stakes.paper.amounts.experiment import AS_IT_IS, ONE_SCALE, OUTLIERS, TREES
from stakes.paper.amounts.intervals import Orders, change, moments
from stakes.paper.amounts.orders import CHOSEN, METHODS, SHARES
from stakes.paper.sweep import Result
from stakes.report.words import interval, markdown_table, verdict

# RMSE, its standard error, log-likelihood, its standard error: dropout by the grid protocol, mean over splits 0-4.
PUBLISHED = {
    "boston": (2.85, 0.26, -2.44, 0.08), "concrete": (4.79, 0.33, -2.96, 0.05), "energy": (0.50, 0.03, -1.20, 0.01),
    "power": (4.05, 0.08, -2.82, 0.03), "wine": (0.62, 0.02, -0.93, 0.04), "yacht": (0.63, 0.09, -1.22, 0.03),
}  # fmt: skip
PUBLISHED_ENSEMBLES = {  # RMSE and log-likelihood, mean over 20 splits
    "boston": (3.28, -2.41), "concrete": (6.03, -3.06), "energy": (2.09, -1.38), "power": (4.11, -2.79),
    "wine": (0.64, -0.94), "yacht": (1.58, -1.18),
}  # fmt: skip
PUBLISHED_STEAK = {  # mean cost of a day, 15 for each portion short, 5 for each left
    "past quantile": 59.9479, "past quantile by weekday": 52.0573, "normal": 66.03, "normal by weekday": 54.53,
    "tree": 46.74, "nearest neighbours": 46.28, "linear quantile": 49.28, "deep quantile network": 49.80,
}  # fmt: skip
STEAK_SHARE, STEAK_SCALE = 0.75, 2.0  # 15 and 5 are twice the costs of the other tables
PUBLISHED_ORDERS = {  # mean over seven products, of which four are public, by share
    "past quantile": (27.81, 24.07, 14.46), "weighted forest": (20.02, 15.86, 9.45),
    "deep quantile network": (23.52, 18.59, 11.19), "linear quantile": (23.32, 18.89, 11.51),
}  # fmt: skip
WORDS = {
    AS_IT_IS: "a scale for each input, labels as they are",
    OUTLIERS: "a scale for each input, 10 % of the training labels moved by 5 standard deviations",
    ONE_SCALE: "one scale for all inputs",
}


def amounts_tables(result: Result) -> str:
    parts: Sequence[str] = result.config["parts"]
    sections = {"accuracy": accuracy_tables, "costs": cost_tables, "orders": order_tables}
    return "\n\n".join(text for part in parts for text in sections[part](result)) + "\n"


def accuracy_tables(result: Result) -> list[str]:
    parts = [
        "## Accuracy on the published splits: mean ± standard error; * misses the published by more than 2 of them"
    ]
    for key, title, place in (
        ("rmse", "RMSE, lower is better", 0),
        ("log_likelihood", "Log-likelihood, higher is better", 2),
    ):
        rows = []
        for data in result.config["sets"]:
            mean, error = PUBLISHED[data][place : place + 2]
            cells = [_accuracy_cell(result, data, family, key) for family in FAMILIES]
            rows.append([data, f"{mean:.2f} ± {error:.2f}", *cells, f"{PUBLISHED_ENSEMBLES[data][place // 2]:.2f}"])
        headings = ["set", "published, dropout", *FAMILIES, "published, ensembles (20 splits)"]
        parts += [f"### {title}", markdown_table(headings, rows)]
    return parts


def _accuracy_cell(result: Result, data: str, family: str, key: str) -> str:
    mean, error = moments(result, key, part="accuracy", data=data, method=family)
    return f"{mean:.2f} ± {error:.2f}{'' if reaches_published(result, data, family, key) else ' *'}"


def reaches_published(result: Result, data: str, family: str, key: str) -> bool:
    """Whether it is within two of the published standard errors of the published mean, or better."""
    ours = moments(result, key, part="accuracy", data=data, method=family)[0]
    rmse, rmse_error, log_likelihood, its_error = PUBLISHED[data]
    return ours <= rmse + 2 * rmse_error if key == "rmse" else ours >= log_likelihood - 2 * its_error


def cost_tables(result: Result) -> list[str]:
    parts = ["## Mean test cost of plain networks, and by how many per cent others differ (95 %, paired by split)"]
    for condition in result.config["conditions"]:
        trees = [] if condition == ONE_SCALE else [TREES]
        rows = []
        for data, cost in pairs((*result.config["sets"], MADE), COSTS):
            plain, _ = moments(
                result, "cost", part="costs", data=data, condition=condition, cost_name=cost, method="plain"
            )
            others = [_change_cell(result, data, condition, cost, name) for name in ("calibrated", "direct", *trees)]
            rows.append([data, cost, f"{plain:.4f}", *others])
        headings = ["set", "cost", "plain", "calibrated", "direct", *(["boosted trees of quantiles"] * len(trees))]
        parts += [f"### {condition.capitalize()}: {WORDS[condition]}", markdown_table(headings, rows)]
    return [*parts, *_spread_table(result)]


def _spread_table(result: Result) -> list[str]:
    """What calibration makes of the standard deviation of the predictions, and what theory says of it."""
    rows = []
    for condition, cost in pairs(result.config["conditions"], COSTS):
        spreads = []
        for data in (*result.config["sets"], MADE):
            where = {"part": "costs", "data": data, "condition": condition, "cost_name": cost}
            plain, ours = (result.values("spread", method=name, **where) for name in ("plain", "calibrated"))
            limits = result.values("limit", method="calibrated", **where)
            predicted_spreads = [predicted_spread(v, limit, cost) for v, limit in zip(plain**2, limits, strict=True)]
            spreads += [*zip(plain, predicted_spreads, ours, strict=True)]
        rows.append([condition, cost, *(f"{mean:.3f}" for mean in np.mean(spreads, axis=0))])
    title = "### The spread of predictions, in standard deviations of the labels, mean over sets and splits"
    return [title, markdown_table(["", "cost", "plain", "calibrated, by theory", "calibrated, measured"], rows)]


def _change_cell(result: Result, data: str, condition: str, cost: str, method: str) -> str:
    if method == TREES and not cost.startswith("pinball"):
        return ""
    difference = change(result, data, condition, cost, method)
    mark = {"more": " worse", "less": " better"}.get(verdict(difference), "")
    return f"{interval(difference, digits=1, sign=True)}{mark}"


def order_tables(result: Result) -> list[str]:
    parts = ["## Orders of a restaurant: mean cost of a test day, under + over = 10 (95 %, blocks of 14 days)"]
    products = result.config["products"]
    for place, share in enumerate(SHARES):
        orders = Orders(result, share)
        rows = [
            [
                method,
                *(f"{orders.of_product(method, product):.2f}" for product in products),
                interval(orders.cost(method), digits=2),
                interval(orders.prescriptiveness(method), digits=3),
            ]
            for method in (*METHODS, CHOSEN)
        ]
        headings = ["orders of", *products, "mean over products", "coefficient of prescriptiveness"]
        published = ", ".join(f"{name} {costs[place]:.2f}" for name, costs in PUBLISHED_ORDERS.items())
        chosen = ", ".join(f"{product}: {method}" for product, method in orders.choice.items())
        parts += [
            f"### Cover demand on {100 * share:.0f} % of days",
            markdown_table(headings, rows),
            f"Chosen on earlier days: {chosen}.\n\nPublished, mean over seven products (four of them are public, so "
            f"the level is not to be compared): {published}.",
        ]
    return [*parts, *_steak_table(result)] if "steak" in products else parts


def _steak_table(result: Result) -> list[str]:
    orders = Orders(result, STEAK_SHARE)
    ours = {method: STEAK_SCALE * orders.of_product(method, "steak") for method in (*METHODS, CHOSEN)}
    rows = [[method, f"{cost:.4f}", ""] for method, cost in sorted(ours.items(), key=lambda item: item[1])]
    rows += [[f"published: {name}", "", f"{cost:.2f}"] for name, cost in PUBLISHED_STEAK.items()]
    return [
        "### Steak, 15 for each portion short, 5 for each left",
        markdown_table(["orders of", "here", "published"], rows),
    ]


def amounts_findings(result: Result) -> list[str]:
    """What was found, a sentence for each question."""
    sentences: list[str] = []
    if "accuracy" in result.config["parts"]:
        sets = result.config["sets"]
        for family in FAMILIES:
            reached = {
                key: sum(reaches_published(result, d, family, key) for d in sets) for key in ("rmse", "log_likelihood")
            }
            sentences.append(
                f"{family}: within two standard errors of the published RMSE, or better, on {reached['rmse']} of "
                f"{len(sets)} sets, and of the published log-likelihood on {reached['log_likelihood']}."
            )
    if "costs" in result.config["parts"]:
        sentences += [_calibration_found(result, condition) for condition in result.config["conditions"]]
    if "orders" in result.config["parts"]:
        sentences += [_orders_found(Orders(result, share)) for share in SHARES]
    return sentences


def _calibration_found(result: Result, condition: str) -> str:
    where = [*pairs((*result.config["sets"], MADE), COSTS)]
    difference = [verdict(change(result, data, condition, cost, "calibrated")) for data, cost in where]
    return (
        f"Calibrated against plain, {WORDS[condition]}: of {len(where)} sets and costs, cheaper beyond chance in "
        f"{difference.count('less')}, dearer in {difference.count('more')}."
    )


def _orders_found(orders: Orders) -> str:
    best = orders.best_in_hindsight()
    gap = interval(orders.difference(CHOSEN, best), digits=2, sign=True)
    return (
        f"Orders that cover demand on {100 * orders.share:.0f} % of days: the models chosen on earlier days cost "
        f"{orders.cost(CHOSEN).mean:.2f} a day; the best in hindsight, {best}, {orders.cost(best).mean:.2f}; "
        f"difference {gap}."
    )
