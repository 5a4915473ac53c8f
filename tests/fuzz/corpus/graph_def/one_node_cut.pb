
B
xPlaceholder*
T0*'
_output_shapes
:ÿÿÿÿÿÿÿÿÿ