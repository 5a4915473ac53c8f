
1
pReluq*
T0*
_output_shapes
:
1
qRelup*
T0*
_output_shapes
: