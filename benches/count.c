// SPDX-License-Identifier: MIT OR Apache-2.0
// The harness that `count` runs under emulation. It calls a native function (NATIVE) or the bare machine code in a
// file, on the memory in a file, as many times as an argument says, and prints the last result.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef NATIVE
uint32_t NATIVE(uint8_t *memory, uint64_t length);
#endif

int main(int argc, char **argv)
{
	static uint8_t memory[4096] __attribute__((aligned(64)));
	// The hidden argument (docs/book/reference/abi.md), of which speed programs use few fields or none.
	static uint64_t context[4096];
	uint32_t result = 0;
	FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;

	if (!file || fread(memory, 1, sizeof(memory), file) != sizeof(memory))
		return 1;
	fclose(file);
#ifdef NATIVE
	(void)context;
	for (int i = atoi(argv[2]); i > 0; i--)
		result = NATIVE(memory, sizeof(memory));
#else
	const int rights = PROT_READ | PROT_WRITE | PROT_EXEC;
	char *code = mmap(NULL, 1 << 16, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = fopen(argv[3], "rb");
	if (!file || code == MAP_FAILED)
		return 1;
	size_t length = fread(code, 1, 1 << 16, file);
	__builtin___clear_cache(code, code + length);
	uint64_t (*run)(void *, uint64_t, uint64_t, uint64_t, uint64_t, void *) = (void *)code;
	for (int i = atoi(argv[2]); i > 0; i--)
		result = (uint32_t)run(memory, sizeof(memory), 0, 0, 0, context + 2048);
#endif
	printf("result %u\n", result);
	return 0;
}
