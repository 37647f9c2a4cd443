// SPDX-License-Identifier: MIT OR Apache-2.0
// The busy tail-call chain as XDP programs, for the kernel. mcpu: v3
#define CHAIN_XDP
#define CHAIN_BUSY
#include "chain.h"
