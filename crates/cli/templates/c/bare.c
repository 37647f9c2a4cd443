// A plug-in. `make` compiles, verifies and tests it. host.h is made from host.json, the service's description.
#include "host.h"

SEC("@CONTEXT@/@NAME@")
int @NAME@(struct @CONTEXT@ *context)
{
	(void)context;
	return 0;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
