"""robomimic: the algorithm `ileed` for its own train script, configs, checkpoints and rollouts.

    python -m ileed.integrations.robomimic --config ileed.json --dataset square.hdf5

runs robomimic's train script with this additional algorithm. robomimic does not discover algorithms, so other programs
must call `register()` before they read a config or checkpoint with `"algo_name": "ileed"`.
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
    """Register the algorithm `ileed` with robomimic: its mixture policies, fitted jointly with operators' expertise.

    The policy is that of robomimic's BC_RNN_GMM with `config.algo.rnn.enabled` (the default here), otherwise that of
    its BC_GMM. The loss is the mean negative log-likelihood of the actions under the demonstrator model, in nats.
    Settings in `config.algo.ileed`:

    `demonstrators`: the names of the operators, indexed by the data set `demonstrator`; by default those of the file.
    `demonstrator_model`: "signal" (`SignalScaling`, also the default of `ileed.Ileed`) or "variance"
        (`VarianceScaling`, as in the paper).
    `centre` (only "signal"): the fixed point of the gains; by default the mean action of the training episodes.
    `scaled` (only "variance"): what expertise divides, "variance" or "standard_deviation".
    `skill_learning_rate`: Adam's learning rate for w, gains and noise levels, by default 1e-4 as in the paper.
    `exempt_actions`: dimensions that expertise does not scale, by default the last one (a binary gripper).

    The log of each epoch has `Expertise/NAME`, rho_i = sigmoid(w_i); the checkpoint has w as `skill.logits`, and log
    gains and log noise levels as `demonstrator.gain` and `demonstrator.precision`. Only ratios of expertise are
    meaningful. With "signal", rho_i is the operator's precision relative to the squared gain,
    g_i^2 sigma^2 / variance, as a geometric mean over the dimensions that are not exempt: an operator whose actions
    and noise are both 0.3 times as large has the same rho_i. With "variance" it is the absolute precision,
    sigma^2 / variance, which favours small actions. Both refer to single steps and are in-sample. For ratings over a
    horizon, with intervals and reliability, run `ileed fit` on the same file.
    """
    try:
        algo: Any = import_module("robomimic.algo")
        config: Any = import_module("robomimic.config.bc_config")
    except ImportError as error:
        raise IleedError(
            f"robomimic cannot be imported here ({error}): install it with --no-deps in a separate environment; see "
            "docs/howto/robomimic.md"
        ) from error

    class IleedConfig(_Settings, config.BCConfig):  # type: ignore[misc]
        ALGO_NAME = "ileed"  # robomimic knows a config by this name once its class is defined

    class Ileed(_JointlyWithExpertise, algo.BC_GMM):  # type: ignore[misc]
        """robomimic's mixture policy of single steps."""

        def operators(self, batch: Batch) -> Tensor:
            return super().operators(batch)[:, 0]

    class IleedRnn(_JointlyWithExpertise, algo.BC_RNN_GMM):  # type: ignore[misc]
        """robomimic's recurrent mixture policy."""

    @algo.register_algo_factory_func("ileed")  # type: ignore[untyped-decorator]
    def algorithm(settings: Any) -> tuple[type, dict[str, Any]]:
        others = (settings.gaussian, settings.vae, settings.transformer)
        if not settings.gmm.enabled or any(other.enabled for other in others):
            raise SettingsError(
                "ileed needs a mixture policy: set algo.gmm.enabled, with or without algo.rnn.enabled, and none of "
                "gaussian, vae and transformer"
            )
        return (IleedRnn if settings.rnn.enabled else Ileed), {}


_Robomimic: Any = object  # stands for robomimic's classes, which a type checker does not see


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
    """Adds expertise to a mixture policy by overriding the hooks of robomimic's `BC`."""

    def _create_networks(self) -> None:
        super()._create_networks()
        settings, train = self.algo_config.ileed, self.global_config.train
        has_gains = one_of("algo.ileed.demonstrator_model", settings.demonstrator_model, _MODELS) == "signal"
        with self.global_config.values_unlocked():  # stored in the config, so that a checkpoint loads without the data
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
        """The number of steps in the training episodes, by which the prior is divided."""
        return len(actions_of(self.global_config.train.data, self.global_config.train.hdf5_filter_key))

    def expertise(self) -> Tensor:
        """(operator,) expertise rho_i = sigmoid(w_i), initially equal."""
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
        """The operator of each step of the batch, from robomimic's loader."""
        found = batch.get("demonstrator")
        if found is None or found.ndim != 2:  # missing keys are (batch, time, 1) zeros
            raise SettingsError(
                "the batch does not name the demonstrators: keep 'demonstrator' in train.dataset_keys, and use a file "
                "that has this data set (ileed.label_robomimic adds it)"
            )
        names = self.algo_config.ileed.demonstrators
        if found.max() >= len(names):
            raise SettingsError(
                f"the file has a demonstrator {int(found.max())} but algo.ileed.demonstrators has {len(names)} names: "
                "name all demonstrators from 0 on, or leave it empty"
            )
        return found.to(self.device).long()

    def _forward_training(self, batch: Batch) -> OrderedDict[str, Tensor]:
        policy = self.nets["policy"].forward_train(obs_dict=batch["obs"], goal_dict=batch["goal_obs"])
        shape, operator = policy.batch_shape, batch["operator"].flatten()
        # one member, whose rows are the steps of all sequences
        rows = mixture(*(part.reshape(1, -1, *part.shape[len(shape) :]) for part in mixture_parts(policy)))
        context = Context(self.own_parameters, Pick.drawn(operator, len(self.algo_config.ileed.demonstrators)))
        observed = self.demonstrator_model.observed(rows, self.expertise()[operator][None], context)
        return OrderedDict(log_probs=observed.log_prob(batch["actions"].reshape(1, len(operator), -1)).view(shape))

    def _train_step(self, losses: dict[str, Tensor]) -> Any:
        self.optimizers["skill"].zero_grad()
        own = self.own_parameters
        prior = None if own is None else self.demonstrator_model.log_prior(own)
        if prior is not None:  # not part of the logged loss, which is the likelihood
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
            'scales the variance: set demonstrator_model to "variance", or omit scaled'
        )
    else:
        model = SignalScaling(exempt=exempt, centre=tuple(settings.centre))
    model.check(sizes)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run robomimic's train script with the algorithm `ileed`; returns 0 if training succeeded."""
    parser = argparse.ArgumentParser(prog="python -m ileed.integrations.robomimic", description=main.__doc__)
    parser.add_argument("--config", help="robomimic settings as JSON; by default those of --algo")
    parser.add_argument("--algo", default="ileed", help="the algorithm without --config")
    parser.add_argument("--dataset", help="the HDF5 file, instead of the one in the config")
    parser.add_argument("--name", help="the experiment name, instead of the one in the config")
    parser.add_argument("--debug", action="store_true", help="robomimic's quick trial of a few steps")
    given = parser.parse_args(arguments)
    try:
        register()
    except IleedError as error:
        print(f"ileed: {error}", file=sys.stderr)  # noqa: T201
        return 2
    script: Any = import_module("robomimic.scripts.train")
    # robomimic's main prints errors of the training and returns normally, but the exit code must tell
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
