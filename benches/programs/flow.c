// SPDX-License-Identifier: MIT OR Apache-2.0
// The flow dissector over a raw context. mcpu: v3
#include "flow.h"
