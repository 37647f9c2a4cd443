// SPDX-License-Identifier: MIT OR Apache-2.0
// The flow dissector as an XDP program: the kernel's peer of flow.c. mcpu: v3
#define FLOW_XDP
#include "flow.h"
