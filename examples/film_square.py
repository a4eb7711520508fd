"""Film a stand-in operator who puts the square nut on its peg; take more of them for more films."""

from ileed import IleedError
from ileed_lab.square.filming import film
from ileed_lab.square.operators import OPERATORS, SquareExpert

for operator in OPERATORS[:1]:
    try:
        succeeded = film(SquareExpert(operator), f"{operator.name}.gif", picture=f"{operator.name}.png")
    except IleedError as error:
        print(error)
        break
    print(f"{operator.name} {'succeeded' if succeeded else 'failed'}: {operator.name}.gif")
