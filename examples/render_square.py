"""Render an episode of a simulated operator who puts the square nut on its peg, as a .gif and a picture."""

from ileed import IleedError
from ileed_lab.square.operators import OPERATORS, SquareExpert
from ileed_lab.square.rendering import render_episode

for operator in OPERATORS[:1]:
    try:
        succeeded = render_episode(SquareExpert(operator), f"{operator.name}.gif", picture=f"{operator.name}.png")
    except IleedError as error:
        print(error)
        break
    print(f"{operator.name} {'succeeded' if succeeded else 'failed'}: {operator.name}.gif")
