// SPDX-License-Identifier: MIT OR Apache-2.0
// The tail-call chain as XDP programs, for the kernel. mcpu: v3
#define CHAIN_XDP
#include "chain.h"
