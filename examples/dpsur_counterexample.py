"""DPSUR's published ε is too small: an explicit instance that leaks more than the paper claims.

Run it with `python examples/dpsur_counterexample.py`; it takes about a minute, and a few seconds
when results of an earlier run are still in the accounting cache.
"""

from reticent.privacy import SelectiveGaussian, trials_for
from reticent.privacy.accountants import pld_epsilon, rdp_epsilon
from reticent.privacy.selective_exact import exact_epsilon
from reticent.privacy.selective_instance import instance_epsilon, thresholds_for
from reticent.privacy.selective_paper import paper_epsilon

DELTA = 1e-5

# (name, records, batch, noise of the sum, batch of the test, noise of the test, accepted updates)
PUBLISHED = (
    ("MNIST", 60_000, 1024, 2.0, 256, 1.3, 576),
    ("FMNIST", 60_000, 2048, 4.0, 256, 1.3, 651),
    ("CIFAR-10", 50_000, 8192, 5.67, 256, 1.1, 496),
)

WHY = """\
DPSUR draws noisy sums until one passes a noisy test on fresh records, releases that one, and
charges it as if it had the law of any noisy sum. It has not: what passed is tilted by the
probability of passing, which depends on the records. Take a loss that falls exactly where the sum
shows that a record z took part. With x the sum's component along z's gradient, in units of the clip
bound, and candidates that pass

    without z in the test   often for x < x1 and x > x3, rarely between
    with z in the test      often for x > x2, rarely below

the accepted sums give z away more than the claim allows. All at delta = 1e-5:
"""

COLUMNS = ("", "updates", "claimed", "instance, at least", "exact", "PLD", "RDP")


def main() -> None:
    """Print the table."""
    print(WHY)
    print("{:<9} {:>8} {:>8} {:>19} {:>8} {:>8} {:>8}".format(*COLUMNS))
    lines = []
    for name, records, batch, noise, valid_batch, valid_noise, count in PUBLISHED:
        charge = SelectiveGaussian(
            rate=batch / records,
            multiplier=noise,
            valid_rate=valid_batch / records,
            valid_noise=valid_noise,
            beta=-1.0,
            trials=trials_for(-1.0, valid_noise),
        )
        claimed = paper_epsilon(charge, count, DELTA)
        thresholds = thresholds_for(charge, count, DELTA)
        leaked = instance_epsilon(charge, count, DELTA, thresholds)
        exact = exact_epsilon(charge, count, None, DELTA)
        by_pld = pld_epsilon(((charge, count),), DELTA)
        by_rdp = rdp_epsilon(((charge, count),), DELTA)
        print(
            f"{name:<9} {count:>8} {claimed:>8.3f} {leaked:>19.4f} {exact:>8.4f} "
            f"{by_pld:>8.3f} {by_rdp:>8.3f}"
        )
        x1, x2, x3 = thresholds
        lines.append(
            f"{name}: x1 = {x1:.2f}, x2 = {x2:.2f}, x3 = {x3:.2f}; "
            f"the claim is at least {100 * (leaked / claimed - 1):.0f} % too small"
        )
    print("", *lines, sep="\n")
    print(
        "\n'exact', 'PLD' and 'RDP' are proven upper bounds; a ledger states the smallest of them."
    )


if __name__ == "__main__":
    main()
