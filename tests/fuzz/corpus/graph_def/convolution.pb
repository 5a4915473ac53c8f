
C
cvConv2Dik*
T0*&
_output_shapes
:
A
iPlaceholder*
T0*&
_output_shapes
:
?
kConst*
dtype0*&
_output_shapes
: