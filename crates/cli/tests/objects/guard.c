// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The project that `bpf new guard` makes, which a test compares with the files in the folder `guard`.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "guard/guard.c"
