"""The kitchens of overcooked-ai, run by the interpreter of its own environment, which has nothing of ours.

It reads one JSON object a line and answers each with one:

    {"start": [map, ...], "rules": "1.1.0"}            {"states": [state, ...]}
    {"actions": [[first, second], ...]}                {"states": [state, ...], "rewards": [number, ...]}
    {"check": map, "states": [...], "actions": [...], "rules": "2019"}
                                                       {"steps": number, "alike": number, "reward": number}

Maps are rows of letters, states those of the published trials, and actions [dx, dy] or "INTERACT".

What happens in a step is the package's `get_state_transition`. Its release 1.1.0 has changed one rule since
demonstrators played: there a pot begins to cook when a demonstrator with empty hands interacts with it, and in 2019 it
began by itself with the third onion. Rules "2019" restore that: such an interaction does nothing, and full pots are
told to begin, as the package's own interaction would tell them. `check` counts the recorded steps that come out as they
were recorded.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import cache
from typing import Any

ONIONS, COOKED = 3, 20


@cache
def package() -> Any:
    """The package's kitchens, imported on use: this file can be read where they are not."""
    return importlib.import_module("overcooked_ai_py.mdp.overcooked_mdp")


class Kitchen:
    """One map, with the rules of the package or those of 2019."""

    def __init__(self, tiles: list[str], rules: str) -> None:
        orders = [{"ingredients": ["onion"] * ONIONS}]
        self.world = package().OvercookedGridworld.from_grid(tiles, {"start_all_orders": orders})
        self.begins_by_itself = {"1.1.0": False, "2019": True}[rules]

    def after(self, state: Any, actions: list[Any]) -> tuple[Any, float]:
        """The next state and the reward of both players."""
        made = [package().Action.INTERACT if each == "INTERACT" else tuple(each) for each in actions]
        if self.begins_by_itself:
            made = [
                package().Action.STAY if each == package().Action.INTERACT and self._starts_a_pot(player) else each
                for player, each in zip(state.players, made, strict=True)
            ]
        found, about = self.world.get_state_transition(state, tuple(made))
        if self.begins_by_itself:
            for each in found.objects.values():
                if each.name == "soup" and each.is_idle and len(each.ingredients) == ONIONS:
                    each.begin_cooking()
                    each.cook()
        return found, sum(about["sparse_reward_by_agent"])

    def _starts_a_pot(self, player: Any) -> bool:
        faced = package().Action.move_in_direction(player.position, player.orientation)
        return not player.has_object() and self.world.get_terrain_type_at_pos(faced) == "P"

    def state(self, recorded: dict[str, Any]) -> Any:
        """A recorded state as the package's."""
        players = [
            package().PlayerState(tuple(each["position"]), tuple(each["orientation"]), _object(each.get("held_object")))
            for each in recorded["players"]
        ]
        objects = {tuple(each["position"]): _object(each) for each in recorded["objects"].values()}
        return package().OvercookedState(players, objects, all_orders=self.world.start_all_orders)


def _object(recorded: dict[str, Any] | None) -> Any:
    if recorded is None:
        return None
    position = tuple(recorded["position"])
    if recorded["name"] != "soup":
        return package().ObjectState(recorded["name"], position)
    _, onions, ticks = recorded["state"]
    ticks = ticks or -1  # not begun
    return package().SoupState.get_soup(position, num_onions=onions, cooking_tick=ticks, finished=ticks >= COOKED)


def written(state: Any) -> dict[str, Any]:
    """A state of the package as the published trials write it."""
    players = [
        {"position": list(each.position), "orientation": list(each.orientation)}
        | ({"held_object": _written(each.held_object)} if each.has_object() else {})
        for each in state.players
    ]
    return {"players": players, "objects": {str(k): _written(state.objects[k]) for k in sorted(state.objects)}}


def _written(thing: Any) -> dict[str, Any]:
    found = {"name": thing.name, "position": list(thing.position)}
    if thing.name == "soup":
        found["state"] = ["onion", len(thing.ingredients), max(thing._cooking_tick, 0)]
    return found


def check(kitchen: Kitchen, states: list[Any], actions: list[Any]) -> dict[str, Any]:
    """How many recorded steps come out as recorded, and the reward over all of them."""
    alike, reward = 0, 0.0
    for now, made, following in zip(states, actions, [*states[1:], None], strict=True):
        found, gained = kitchen.after(kitchen.state(now), made)
        alike += following is not None and written(found) == written(kitchen.state(following))
        reward += gained
    return {"steps": len(states) - 1, "alike": alike, "reward": reward}


def main() -> None:
    """Answer until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever the package prints is no answer
    kitchens: list[Kitchen] = []
    states: list[Any] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            kitchens = [Kitchen(tiles, asked["rules"]) for tiles in asked["start"]]
            states = [each.world.get_standard_start_state() for each in kitchens]
            answer: dict[str, Any] = {"states": [written(each) for each in states]}
        elif "check" in asked:
            answer = check(Kitchen(asked["check"], asked["rules"]), asked["states"], asked["actions"])
        else:
            stepped = [k.after(state, made) for k, state, made in zip(kitchens, states, asked["actions"], strict=True)]
            states = [state for state, _ in stepped]
            answer = {"states": [written(each) for each in states], "rewards": [reward for _, reward in stepped]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
