
I
v
VariableV2*
dtype0*
shape:*
_output_shapes
:
5
rIdentityv*
T0*
_output_shapes
: