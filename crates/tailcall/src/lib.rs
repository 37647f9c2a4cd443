//! Direct tail calls: poke sites as a typed state machine
