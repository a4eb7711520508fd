"""robomimic: the algorithm `ileed` for its own train script, configs, checkpoints and rollouts.

    python -m ileed.integrations.robomimic --config ileed.json --dataset square.hdf5

is robomimic's train script with one more algorithm. robomimic discovers none by itself, so a program of your own calls
`register()` before it reads a config or a checkpoint that says `"algo_name": "ileed"`.
"""

from __future__ import annotations

import argparse
import sys
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ileed.errors import IleedError, SettingsError, one_of
from ileed.formats.robomimic import actions_of, demonstrators_of
from ileed.model.batch import Sizes
from ileed.model.demonstrators import Context, VarianceScaling
from ileed.model.distributions import mixture, mixture_parts
from ileed.model.nets import Pick
from ileed.model.scaling import SignalScaling

Batch = dict[str, Any]
_MODELS = ("signal", "variance")


def register() -> None:
    """Teach robomimic the algorithm `ileed`: its mixture policies, fitted jointly with one expertise for each operator.

    With `config.algo.rnn.enabled` (the default here) the policy is that of robomimic's BC_RNN_GMM, otherwise that of
    its BC_GMM. The loss is the mean negative log-likelihood of the actions under the demonstrator model, in nats.
    Settings, in `config.algo.ileed`:

    `demonstrators`: the operators' names, which the file's data set `demonstrator` indexes; empty takes the file's.
    `demonstrator_model`: "signal" (`SignalScaling`, the default of `ileed.Ileed` too) or "variance"
        (`VarianceScaling`, the paper's).
    `centre`: the action about which gains scale; empty takes the mean action of the training episodes. Of "signal".
    `scaled`: "variance" or "standard_deviation", what is divided by expertise. Of "variance".
    `skill_learning_rate`: Adam's for w, gains and noise levels, 1e-4 as in the paper; the policy's is robomimic's own.
    `exempt_actions`: dimensions that expertise does not scale, by default the last (the gripper is open or shut).

    Each epoch's log has `Expertise/NAME`, which is rho_i = sigmoid(w_i); the checkpoint has w as `skill.logits`, and
    log gains and log noise levels as `demonstrator.gain` and `demonstrator.precision`. Only ratios of expertise mean
    anything. With "signal", rho_i is the operator's precision about the policy in units of the operator's gain,
    g_i^2 sigma^2 / variance, as the geometric mean over the dimensions that are not exempt: an operator whose actions
    and noise are both 0.3 times as large has the same rho_i. With "variance" it is the absolute precision,
    sigma^2 / variance, which rewards small actions. Both are of single steps and in-sample. For ratings over a horizon,
    with intervals and their reliability, run `ileed fit` on the same file.
    """
    try:
        algo: Any = import_module("robomimic.algo")
        config: Any = import_module("robomimic.config.bc_config")
    except ImportError as error:
        raise IleedError(
            f"robomimic cannot be imported here ({error}): install it with --no-deps in an environment of its own; "
            "docs/howto/robomimic.md says how"
        ) from error

    class IleedConfig(_Settings, config.BCConfig):  # type: ignore[misc]
        ALGO_NAME = "ileed"  # robomimic knows a config by this name once its class is defined

    class Ileed(_JointlyWithExpertise, algo.BC_GMM):  # type: ignore[misc]
        """robomimic's mixture policy, each step on its own."""

        def operators(self, batch: Batch) -> Tensor:
            return super().operators(batch)[:, 0]

    class IleedRnn(_JointlyWithExpertise, algo.BC_RNN_GMM):  # type: ignore[misc]
        """robomimic's recurrent mixture policy."""

    @algo.register_algo_factory_func("ileed")  # type: ignore[untyped-decorator]
    def algorithm(settings: Any) -> tuple[type, dict[str, Any]]:
        others = (settings.gaussian, settings.vae, settings.transformer)
        if not settings.gmm.enabled or any(other.enabled for other in others):
            raise SettingsError(
                "ileed scales the means and variances of a mixture: set algo.gmm.enabled, with or without "
                "algo.rnn.enabled, and neither gaussian, vae nor transformer"
            )
        return (IleedRnn if settings.rnn.enabled else Ileed), {}


_Robomimic: Any = object  # what robomimic's classes are to a type checker that does not see them


class _Settings(_Robomimic):  # type: ignore[misc]
    """robomimic's BC-RNN-GMM settings, and ours."""

    def train_config(self) -> None:
        super().train_config()
        self.train.dataset_keys = (*self.train.dataset_keys, "demonstrator")
        self.train.seq_length = 10

    def algo_config(self) -> None:
        super().algo_config()
        self.algo.actor_layer_dims = ()
        self.algo.gmm.enabled = self.algo.rnn.enabled = True
        self.algo.ileed.demonstrators = []
        self.algo.ileed.demonstrator_model = "signal"
        self.algo.ileed.centre = []
        self.algo.ileed.scaled = "variance"
        self.algo.ileed.skill_learning_rate = 1e-4
        self.algo.ileed.exempt_actions = [-1]


class _JointlyWithExpertise(_Robomimic):  # type: ignore[misc]
    """Adds expertise to one of robomimic's mixture policies: it overrides the hooks that robomimic's `BC` offers."""

    def _create_networks(self) -> None:
        super()._create_networks()
        settings, train = self.algo_config.ileed, self.global_config.train
        has_gains = one_of("algo.ileed.demonstrator_model", settings.demonstrator_model, _MODELS) == "signal"
        with self.global_config.values_unlocked():  # kept in the config, so that a checkpoint loads without the data
            if not settings.demonstrators:
                settings.demonstrators = list(demonstrators_of(train.data))
            if has_gains and not settings.centre:
                settings.centre = actions_of(train.data, train.hdf5_filter_key).mean(0, dtype="float64").tolist()
        count = len(settings.demonstrators)
        sizes = Sizes(inputs=0, demonstrators=count, actions=self.ac_dim, discrete=False)
        self.demonstrator_model = _demonstrator_model(settings, sizes)
        equal = nn.Parameter(torch.zeros(count, device=self.device))
        self.nets["skill"] = nn.ParameterDict({"logits": equal})
        self.own_parameters = self.demonstrator_model.build(sizes, [torch.Generator()])
        if self.own_parameters is not None:
            self.nets["demonstrator"] = self.own_parameters.to(self.device)

    @cached_property
    def training_steps(self) -> int:
        """The number of steps in the training episodes, over which the prior is spread."""
        return len(actions_of(self.global_config.train.data, self.global_config.train.hdf5_filter_key))

    def expertise(self) -> Tensor:
        """One expertise for each operator, rho_i = sigmoid(w_i), equal for all to begin with."""
        found: Tensor = self.nets["skill"]["logits"].sigmoid()
        return found

    def _create_optimizers(self) -> None:
        super()._create_optimizers()
        rate, parts = self.algo_config.ileed.skill_learning_rate, (self.nets["skill"], self.own_parameters)
        parameters = [each for part in parts if part is not None for each in part.parameters()]
        self.optimizers["skill"] = torch.optim.Adam(parameters, lr=rate)

    def process_batch_for_training(self, batch: Batch) -> Batch:
        return {**super().process_batch_for_training(batch), "operator": self.operators(batch)}

    def operators(self, batch: Batch) -> Tensor:
        """Who took each step of the batch, as robomimic's loader read it."""
        found = batch.get("demonstrator")
        if found is None or found.ndim != 2:  # the loader puts (batch, time, 1) zeros for what a file does not hold
            raise SettingsError(
                "the batch does not say who demonstrated: keep 'demonstrator' in train.dataset_keys, and give a file "
                "that has it (ileed.label_robomimic adds it)"
            )
        names = self.algo_config.ileed.demonstrators
        if found.max() >= len(names):
            raise SettingsError(
                f"the file has a demonstrator {int(found.max())} but algo.ileed.demonstrators names {len(names)}: "
                "name them all (they count from 0), or leave it empty"
            )
        return found.to(self.device).long()

    def _forward_training(self, batch: Batch) -> OrderedDict[str, Tensor]:
        policy = self.nets["policy"].forward_train(obs_dict=batch["obs"], goal_dict=batch["goal_obs"])
        shape, operator = policy.batch_shape, batch["operator"].flatten()
        # one member, and all steps of all sequences as its rows
        rows = mixture(*(part.reshape(1, -1, *part.shape[len(shape) :]) for part in mixture_parts(policy)))
        context = Context(self.own_parameters, Pick.drawn(operator, len(self.algo_config.ileed.demonstrators)))
        observed = self.demonstrator_model.observed(rows, self.expertise()[operator][None], context)
        return OrderedDict(log_probs=observed.log_prob(batch["actions"].reshape(1, len(operator), -1)).view(shape))

    def _train_step(self, losses: dict[str, Tensor]) -> Any:
        self.optimizers["skill"].zero_grad()
        own = self.own_parameters
        prior = None if own is None else self.demonstrator_model.log_prior(own)
        if prior is not None:  # beside what is logged, which is the likelihood alone
            losses = {**losses, "action_loss": losses["action_loss"] - prior[0] / self.training_steps}
        info = super()._train_step(losses)
        self.optimizers["skill"].step()
        return info

    def log_info(self, info: Any) -> Any:
        log = super().log_info(info)
        for name, value in zip(self.algo_config.ileed.demonstrators, self.expertise().tolist(), strict=True):
            log[f"Expertise/{name}"] = value
        return log


def _demonstrator_model(settings: Any, sizes: Sizes) -> SignalScaling | VarianceScaling:
    """The demonstrator model of `config.algo.ileed`."""
    exempt = tuple(each + sizes.actions if each < 0 else each for each in settings.exempt_actions)
    model: SignalScaling | VarianceScaling
    if settings.demonstrator_model == "variance":
        model = VarianceScaling(scaled=settings.scaled, exempt=exempt)
    elif settings.scaled != "variance":
        raise SettingsError(
            f'algo.ileed.scaled is {settings.scaled!r} but algo.ileed.demonstrator_model is "signal", which always '
            'scales the variance: set demonstrator_model to "variance", or leave scaled out'
        )
    else:
        model = SignalScaling(exempt=exempt, centre=tuple(settings.centre))
    model.check(sizes)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """robomimic's train script, with `ileed` among its algorithms; 0 where training went through."""
    parser = argparse.ArgumentParser(prog="python -m ileed.integrations.robomimic", description=main.__doc__)
    parser.add_argument("--config", help="settings as robomimic's JSON; without it the defaults of --algo")
    parser.add_argument("--algo", default="ileed", help="the algorithm where no --config names one")
    parser.add_argument("--dataset", help="the HDF5 file, in place of the one in the config")
    parser.add_argument("--name", help="the experiment's name, in place of the one in the config")
    parser.add_argument("--debug", action="store_true", help="robomimic's quick trial of a few steps")
    given = parser.parse_args(arguments)
    try:
        register()
    except IleedError as error:
        print(f"ileed: {error}", file=sys.stderr)  # noqa: T201
        return 2
    script: Any = import_module("robomimic.scripts.train")
    # robomimic's main prints what went wrong and returns as if nothing had: a shell must learn of it.
    train, trained = script.train, []

    def train_and_note(*settings: Any, **named: Any) -> None:
        train(*settings, **named)
        trained.append(settings)

    script.train = train_and_note
    try:
        script.main(given)
    finally:
        script.train = train
    return 0 if trained else 1


if __name__ == "__main__":
    sys.exit(main())
