// SPDX-License-Identifier: MIT OR Apache-2.0
// The tail-call chain over a raw context. mcpu: v3
#include "chain.h"
