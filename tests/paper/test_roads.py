from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from stakes import StakesError, StakesWarning
from stakes.paper.report import summary, write_report
from stakes.paper.roads.data import CLASSES, read_roads
from stakes.paper.roads.experiment import Roads, road_utility, road_weights
from stakes.paper.sweep import run


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of CamVid's form: what is red is Sky, what is green is Road; images and labels in other formats."""
    folder = tmp_path_factory.mktemp("roads")
    generator = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        (folder / part).mkdir()
        (folder / f"{part}annot").mkdir()
        for number in range(count):
            labels = np.where(generator.random((20, 28)) < 0.5, CLASSES.index("Sky"), CLASSES.index("Road"))
            labels[:3, :3], labels[3:6, :3] = CLASSES.index("Car"), CLASSES.index("Pedestrian")
            image = np.zeros((20, 28, 3), dtype=np.uint8)
            image[..., 0], image[..., 1] = 255 * (labels == 0), 255 * (labels == 3)
            Image.fromarray(image).save(folder / part / f"frame_{number}.webp", lossless=True)
            Image.fromarray(labels.astype(np.uint8)).save(folder / f"{part}annot" / f"frame_{number}.png")
    return folder


counts_differ = pytest.mark.filterwarnings("ignore:.*CamVid has:stakes.errors.StakesWarning")


@counts_differ
def test_images_and_labels_are_paired_equalised_and_resized(stand_in: Path) -> None:
    roads = read_roads(stand_in, "train", (16, 24))
    assert roads.images.shape == (6, 3, 16, 24)
    assert set(roads.labels.unique().tolist()) <= {0, 3, 8, 9}
    with Image.open(stand_in / "train" / "frame_2.webp") as opened:
        channels = [ImageOps.equalize(channel) for channel in opened.convert("RGB").split()]
    expected = Image.merge("RGB", channels).resize((24, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(roads.images[2].permute(1, 2, 0), np.array(expected))


@counts_differ
def test_mirrored_crops_are_examples_of_their_own(stand_in: Path) -> None:
    plain = read_roads(stand_in, "train", (16, 24))
    roads = read_roads(stand_in, "train", (16, 24), crops=2)
    assert len(roads) == 18
    assert torch.equal(roads.images[::3], plain.images)
    assert torch.equal(roads.labels[::3], plain.labels)
    assert not torch.equal(roads.labels[1], roads.labels[2])
    # What is red is still Sky: image and labels were cut and mirrored alike.
    red = roads.images[1::3, 0] > 200
    assert float((roads.labels[1::3][red] == CLASSES.index("Sky")).float().mean()) > 0.8
    again = read_roads(stand_in, "train", (16, 24), crops=2)
    assert torch.equal(roads.images, again.images)


@counts_differ
def test_a_crop_shows_its_part_of_the_image_mirrored(tmp_path: Path) -> None:
    for part in ("train", "trainannot"):
        (tmp_path / part).mkdir()
    ramp = np.tile(np.arange(120, dtype=np.uint8), (80, 1)) // 12  # columns of 0 to 9
    Image.fromarray(np.repeat(20 * ramp[..., None], 3, 2)).save(tmp_path / "train" / "a.png")
    Image.fromarray(ramp).save(tmp_path / "trainannot" / "a.png")
    _, crop = read_roads(tmp_path, "train", (80, 120), crops=1).labels
    steps = crop[0].long().diff()
    assert (steps <= 0).all(), "mirrored, the ramp falls"
    assert 8 <= len(crop.unique()) <= 10, "at least 0.8 of the sides"


def test_the_utility_is_the_papers_table_4() -> None:
    utility = road_utility()
    table = dict(zip(CLASSES, utility.values, strict=True))
    assert table["Sky"].tolist() == [0.8] + [0.0] * 11
    assert table["Tree"].tolist() == [0.2] * 5 + [0.8] + [0.2] * 6
    assert table["Pedestrian"].tolist() == [0.4] * 9 + [0.8, 0.8, 0.4]
    assert table["Cyclist"].tolist() == table["Pedestrian"].tolist()
    assert utility.values.shape == (12, 12)
    assert road_weights()[8] == pytest.approx(2)


@counts_differ
@pytest.mark.parametrize("protocol", ["fair", "authors"])
def test_roads_from_end_to_end_on_stand_ins(stand_in: Path, tmp_path: Path, protocol: str) -> None:
    experiment = Roads(str(stand_in), protocol, "16x24", 1 / 16, seeds=1, epochs=3, batch_size=3, test_samples=2)
    result = run(experiment, tmp_path)
    assert len(result.rows) == 6
    needed = {"protocol", "method", "rule", "seed", "utility", "accuracy", "size", "width", "iou", "mean_iou"}
    assert all(needed <= set(row) for row in result.rows)
    for row in result.rows:
        pixels = np.array(row["confusion"])
        assert pixels.sum() == 3 * 16 * 24
        assert row["utility"] == pytest.approx(np.mean(row["image_utilities"]), abs=1e-4)
    files = write_report(result, tmp_path)
    assert [file.name for file in files] == ["utility_maps.png", "tables.md", "report.html"]
    tables = files[1].read_text()
    assert "| calibrated | " in tables
    assert "| *the paper's calibrated* | 82.5 | 0.652 | 81.8 | 0.685 |" in tables
    (sky,) = (line for line in tables.splitlines() if line.startswith("| Sky |"))
    row = next(row for row in result.rows if row["method"] == "standard" and row["rule"] == "optimal")
    counts = np.array(row["confusion"])
    expected = counts[0, 0] / (counts[0].sum() + counts[:, 0].sum() - counts[0, 0])
    assert sky.startswith(f"| Sky | {expected:.2f} (")
    assert files[0].stat().st_size < 200_000
    assert "calibrated" in summary(result)


def test_what_is_not_camvid_is_refused(tmp_path: Path, stand_in: Path) -> None:
    with pytest.raises(StakesError, match="trainannot"):
        read_roads(tmp_path, "train", (16, 24))
    with pytest.warns(StakesWarning, match="has 233 images"):
        read_roads(stand_in, "test", (16, 24))
    for part in ("train", "trainannot"):
        (tmp_path / part).mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "a.png")
    with pytest.raises(StakesError, match="'a' has only one"):
        read_roads(tmp_path, "train", (8, 8))
    Image.new("L", (8, 8), 77).save(tmp_path / "trainannot" / "a.png")
    with pytest.warns(StakesWarning), pytest.raises(StakesError, match="0 to 11"):
        read_roads(tmp_path, "train", (8, 8))


@pytest.mark.parametrize("size", ["96", "90x128", "axb"])
def test_impossible_sizes_are_refused(size: str) -> None:
    with pytest.raises(StakesError, match="multiples of 8"):
        Roads(size=size)


def test_real_camvid_has_its_published_share_of_classes(data_folder: Path) -> None:
    roads = read_roads(data_folder, "val", (48, 64))
    assert len(roads) == 101
    shares = torch.bincount(roads.labels.flatten(), minlength=12) / roads.labels.numel()
    assert float(shares[CLASSES.index("Cyclist")]) == pytest.approx(0.022, abs=0.002)
