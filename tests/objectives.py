"""One objective for every loss, correction, divergence and bonus, whose gradients are compared."""

from collections.abc import Mapping
from typing import Any

from legos.losses.objective import Objective

__all__ = ["EVERY_OBJECTIVE"]

KL: Any = {"kl_coef": 0.3, "ema_kl_coef": 0.2}

EVERY_OBJECTIVE: Mapping[str, Objective] = {
    "reinforce": Objective(loss="reinforce"),
    "ppo": Objective(loss="ppo", clip_low=0.3, clip_high=0.1),
    "gspo": Objective(loss="gspo", clip_low=0.3, clip_high=0.1),
    "cispo": Objective(loss="cispo", clip_low=1.0, clip_high=0.5),
    "cispo_both": Objective(loss="cispo", clip_low=0.4, clip_high=0.5),
    "dppo_tv": Objective(loss="dppo_tv", clip_low=0.1, clip_high=0.05),
    "dppo_kl": Objective(loss="dppo_kl", clip_low=0.05, clip_high=0.02),
    "gmpo": Objective(loss="gmpo", clip_low=0.4, clip_high=0.2),
    "sapo": Objective(loss="sapo"),
    "online_dpo": Objective(loss="online_dpo"),
    "decoupled": Objective(anchor="proximal"),
    "decoupled_gspo": Objective(loss="gspo", anchor="proximal"),
    "decoupled_cispo": Objective(loss="cispo", anchor="proximal"),
    "decoupled_dppo": Objective(loss="dppo_tv", anchor="proximal"),
    "decoupled_gmpo": Objective(loss="gmpo", anchor="proximal", clip_low=0.4, clip_high=0.4),
    "icepop": Objective(anchor="proximal", icepop=2.0),
    "masked": Objective(icepop=5.0),
    "masked_gspo": Objective(loss="gspo", icepop=3.0),
    "kl_k2": Objective(kl_estimator="k2", **KL),
    "kl_k3": Objective(kl_estimator="k3", **KL),
    "kl_exact": Objective(kl_estimator="exact", **KL),
    "entropy": Objective(entropy_coef=0.4),
}
