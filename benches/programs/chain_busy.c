// SPDX-License-Identifier: MIT OR Apache-2.0
// The tail-call chain with four values kept across a call in every hop. mcpu: v3
#define CHAIN_BUSY
#include "chain.h"
