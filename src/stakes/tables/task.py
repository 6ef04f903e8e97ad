"""What ``stakes fit`` is asked for: as values, checked; from the text of options; and as a command again."""

import csv
import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast, get_args

from stakes.errors import StakesError, joined_names, listing
from stakes.tables.amounts.kind import Amounts
from stakes.tables.classes import Classes
from stakes.tables.kind import Kind
from stakes.tables.problem import FAMILIES, LEARNING_RATES, LikelihoodName, Noise, Recipe
from stakes.utility.csv import holds_curves

CHECKPOINT_SECONDS = 1.0  # a checkpoint of a network for tables takes milliseconds
CV = "cv"  # every row is a test row once
TEST_SHARE = 0.2
CLASSES, AMOUNTS = Classes(), Amounts()


@dataclass(frozen=True)
class TableTask:
    """What to decide, from which data."""

    data: Path
    target: str
    costs: Path | None = None  # a table of costs, or cost curves
    test: Path | float | str | None = None  # a file, the share of rows to hold out, or CV; None: by the rows
    folds: int | None = None  # that the other rows are divided into; None: by the rows
    group: str | None = None  # a column: rows that agree in it stay on one side of every split
    time: str | None = None  # a column: the latest rows are tested on, and folds go forward
    id: str | None = None  # a column that names the rows: in the report, and no feature
    by: str | None = None  # a column: the report has costs for each of its values
    keep_rows: bool = True  # whether the saved model holds a few training rows, for --why
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    models: tuple[str, ...] | None = None  # to compare; None: the usual ones
    recipe: Recipe = field(default_factory=Recipe)
    seeds: int = 1
    seed: int = 0
    under: str | None = None  # of amounts: the cost of each unit too few, a number, a column or a formula
    over: str | None = None  # and of each unit too many
    step: float | None = None  # between decisions that are numbers
    at_least: float | None = None
    at_most: float | None = None
    lags: tuple[int, ...] = ()  # how many times earlier the amounts are that become features
    series: str | None = None  # a column: each of its values has amounts of its own in time

    def settings(self) -> dict[str, Any]:
        """All of it in JSON types, with the contents of the files: two runs with equal settings are equal."""
        files = {"data": self.data, "costs": self.costs, "test": self.test}
        digests = {
            f"{key}_sha256": hashlib.sha256(path.read_bytes()).hexdigest()
            for key, path in files.items()
            if isinstance(path, Path)
        }
        return {**_plain(self), **digests, "stakes": version("stakes")}

    @property
    def share(self) -> float:
        """The share of rows to test on."""
        return self.test if isinstance(self.test, float) else TEST_SHARE

    @property
    def compared(self) -> tuple[str, ...]:
        """The models, with the constant among them; if none are named, those that may be saved as is wanted."""
        catalogue = self.kind.catalogue
        if self.models is not None:
            return catalogue.with_constant(self.models)
        usual = self.kind.usual(self.recipe)
        return catalogue.with_constant([name for name in usual if self.keep_rows or not catalogue.keeps_rows(name)])

    @property
    def kind(self) -> Kind:
        """What the outcomes are: amounts where their costs are given for each unit, or as curves; else classes."""
        if self.costs is None or holds_curves(self.costs):
            return AMOUNTS
        return CLASSES

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


def check(task: TableTask) -> None:
    """Refuse what no table could make right, before anything is read or written."""
    given = [f"--{name}" for name in ("costs", "under", "over") if getattr(task, name) is not None]
    if not given:
        raise StakesError(
            "say what decisions cost: `stakes costs new --outcomes healthy,ill` writes a file to fill in, then --costs "
            "costs.csv; or, where the outcome is a number, --under and --over, for each unit too few and too many"
        )
    if "--costs" in given and len(given) > 1:
        raise StakesError(
            f"expected --costs, a file, or --under and --over, for each unit of a number, but got {listing(given)}; "
            "leave one out"
        )
    task.kind.check(task)
    if task.models is not None and not task.models:
        raise StakesError("expected at least one model to train, but got none")
    if task.models is not None and len(set(task.models)) < len(task.models):
        raise StakesError(f"expected each model once, but got {listing(task.models)}")
    if task.seeds < 1:
        raise StakesError(f"expected at least one seed, but got {task.seeds}")
    if isinstance(task.test, Path) and task.test.exists() and task.data.exists() and task.test.samefile(task.data):
        raise StakesError(
            f"{task.test}: expected other rows to test on than those to learn from, but it is the same file"
        )
    if task.target in task.drop:
        raise StakesError(f"cannot drop the target {task.target!r}: it is what the models learn")
    if task.target == task.id:
        raise StakesError(f"--id: expected a column that names the rows, but {task.target!r} is the target")
    if isinstance(task.test, float) and not 0 < task.test < 1:
        raise StakesError(f"expected the test share to lie between 0 and 1, but got {task.test:g}")
    if task.group is not None and task.time is not None:
        raise StakesError("expected --group or --time, but got both: a group may go on after the time of the split")
    if task.time is not None and task.test == CV:
        raise StakesError("--test cv would test on rows that are earlier than those learnt from: give a share")
    if task.folds is not None and task.folds < 2:
        raise StakesError(f"expected at least 2 folds, but got {task.folds}")
    for name in task.kind.catalogue.trained_for(task.compared):
        model = task.kind.catalogue.trained[name]
        model.check(task.recipe)
        if model.keeps_rows and not task.keep_rows:
            raise StakesError(
                f"--no-keep-rows: the model {name!r} looks up training rows, which it is saved with; name others with "
                "--models, beside the blend too"
            )


# Options, from text to values --------------------------------------------------------------------------


def split(*texts: str) -> list[str]:
    """The names in some texts, separated by commas; quotation marks around one protect the commas in it."""
    rows = csv.reader(texts, skipinitialspace=True)
    return [part.strip() for row in rows for part in row if part.strip()]


def label_noise(text: str) -> Noise:
    """``none``, ``learnt``, or a rate."""
    if text in ("none", "learnt"):
        return None if text == "none" else "learnt"
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise StakesError(
            f"--label-noise: expected none, learnt, or a rate from 0 up to but not including 1, but got {text!r}"
        )
    return rate


def share_or_file(text: str | None) -> Path | float | str | None:
    """A share, ``cv``, or the path of a file."""
    if text is None or text == CV:
        return text
    try:
        return float(text)
    except ValueError:
        return Path(text)


def network(text: str) -> Literal["tabm", "mlp"]:
    if text not in FAMILIES:
        raise StakesError(f"expected the network to be one of {listing(FAMILIES)}, but got {text!r}")
    return "tabm" if text == "tabm" else "mlp"


def likelihood(text: str) -> LikelihoodName:
    for name in get_args(LikelihoodName):
        if text == name:
            return cast(LikelihoodName, name)
    raise StakesError(f"expected the likelihood to be one of {listing(get_args(LikelihoodName))}, but got {text!r}")


def lags(text: str) -> tuple[int, ...]:
    """``1,7,14``."""
    parsed = _whole_numbers(text)
    if not all(lag >= 1 for lag in parsed) or len(set(parsed)) < len(parsed):
        raise StakesError(f"--lags: expected different whole numbers of at least 1, such as 1,7,14, but got {text!r}")
    return parsed


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Those in a text; one that is none is 0."""
    try:
        return tuple(int(part) for part in split(text))
    except ValueError:
        return (0,)


def sizes(text: str) -> tuple[int, ...]:
    parsed = _whole_numbers(text)
    if not all(size >= 1 for size in parsed):
        raise StakesError(f"--hidden: expected whole numbers of at least 1, such as 128,64, but got {text!r}")
    return parsed


def renames(text: str) -> dict[str, str]:
    """``0=repaid,1=defaulted``."""
    pairs = [[side.strip() for side in part.partition("=")] for part in split(text)]
    if not all(old and mark and new for old, mark, new in pairs) or len({old for old, _, _ in pairs}) < len(pairs):
        raise StakesError(
            f"--labels: expected value=name pairs such as 0=repaid,1=defaulted, each value once, but got {text!r}"
        )
    return {old: new for old, _, new in pairs}


# Back to text --------------------------------------------------------------------------------------


_PLAIN_OPTIONS = (
    *("costs", "under", "over", "step", "at_least", "at_most", "lags", "series", "test", "folds", "group", "time"),
    *("id", "by", "unit", "seeds", "seed", "drop", "categorical"),
)


def command(settings: Mapping[str, Any], out: str = "run") -> str:
    """The line of `stakes fit` for the settings of a `TableTask`, without options at their defaults but --members."""
    recipe, defaults = settings["recipe"], _plain(TableTask(Path(), ""))
    options = {"target": settings["target"]}
    options |= _changed(settings, defaults, *_PLAIN_OPTIONS)
    flags = [] if settings["keep_rows"] else ["--no-keep-rows"]
    options |= {"labels": [f"{old}={new}" for old, new in settings["renames"].items()]} if settings["renames"] else {}
    options |= _changed(settings, defaults, "models")
    options |= _changed(recipe, defaults["recipe"], "network")
    if recipe["posterior"]["family"] != FAMILIES[recipe["network"]]:
        options["posterior"] = recipe["posterior"]["family"]
    options |= {key: value for key, value in recipe["posterior"].items() if key == "members"}
    options |= _changed(recipe, defaults["recipe"], "hidden", "dropout", "samples", "likelihood")
    options |= {"label_noise": recipe["noise"]} if recipe["noise"] is not None else {}
    usual = defaults["recipe"]["training"] | {"learning_rate": LEARNING_RATES[recipe["network"]]}
    options |= _changed(recipe["training"], usual, "epochs", "patience", "batch_size", "learning_rate")
    words = [settings["data"]]
    for name, value in (options | {"out": out}).items():
        option, text = f"--{name.replace('_', '-')}", joined_names(value) if isinstance(value, list) else str(value)
        # A value that begins with a dash would be taken for an option of its own.
        words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(["stakes", "fit", *words, *flags])


def _plain(task: TableTask) -> dict[str, Any]:
    """The fields of a task in JSON types."""
    return dict(json.loads(json.dumps(asdict(task), default=str)))


def _changed(settings: Mapping[str, Any], defaults: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """What is not as by default; a run of an older version lacks what is newer."""
    return {name: settings[name] for name in names if name in settings and settings[name] != defaults[name]}
