"""All public names of the package, imported when the first one is used because this imports torch."""

# ruff: noqa: F401

from ileed.curation import Curated, curate
from ileed.data import Demonstrations
from ileed.envs.evaluation import Scores, evaluate, rank_loss
from ileed.envs.simulation import demonstrate
from ileed.errors import DemonstrationError, IleedError, RunError, SettingsError
from ileed.fitting import Outcome, Progress
from ileed.formats import (
    by_column,
    by_episode_metadata,
    by_episode_table,
    by_mask,
    by_one,
    from_answers,
    from_table,
    label_robomimic,
    read,
    read_lerobot,
    read_parquet,
    read_robomimic,
    shipped,
    write,
    write_lerobot,
    write_parquet,
    write_robomimic,
)
from ileed.labels import Labelling, Labels, label
from ileed.methods import Expertise, Fitted, Ileed, Policy, bc, bc_rnn, compare, load, rate
from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture, VarianceScaling
from ileed.model.expertise import Constant, Difficulty, Drift, Embedded, LatentDynamics, Perfect, Skills
from ileed.model.knowledge import Known
from ileed.model.policies import CategoricalMLP, MixtureLSTM, MixtureMLP
from ileed.model.scaling import SignalScaling
from ileed.model.slips import BiasedMixture, Confusion, Persistent
from ileed.rating.indicators import Explanation, Indicators, indicators
from ileed.report import report
from ileed.selection import ModelComparison
