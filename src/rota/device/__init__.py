"""The device model. It reads images and the tables of `isa`; it knows no schedule, composer or emitter."""
