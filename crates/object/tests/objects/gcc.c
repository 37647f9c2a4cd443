// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A difference of GNU's assembler: a place that refers to a symbol holds the symbol's value already.
 * compiler: bpf-gcc
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]

struct inner {
	__uint(type, 2);
	__uint(max_entries, 1);
	__type(key, unsigned int);
	__type(value, unsigned long long);
};

struct inner first SEC(".maps"), second SEC(".maps");
struct {
	__uint(type, 12);
	__uint(max_entries, 2);
	__type(key, unsigned int);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { &first, &second } };
static struct inner hidden SEC(".maps");

extern void *lookup(void *map, const void *key) __attribute__((kernel_helper(1)));

unsigned long long before = 1, counters[4] = { 1, 2, 3, 4 };

__attribute__((noinline)) int doubled(int x)
{
	asm volatile("" : "+r"(x));
	return 2 * x;
}

__attribute__((noinline)) int tripled(int x)
{
	asm volatile("" : "+r"(x));
	return 3 * x;
}

SEC("xdp") int maps(void *ctx)
{
	unsigned int key = 0;

	(void)ctx;
	return (lookup(&first, &key) != 0) + (lookup(&second, &key) != 0) + (lookup(&outer, &key) != 0) +
	       (lookup(&hidden, &key) != 0);
}

SEC("xdp") int data(void *ctx)
{
	(void)ctx;
	return before + counters[0];
}

SEC("xdp") int calls(void *ctx)
{
	(void)ctx;
	return doubled(1) + tripled(2);
}

char _license[] SEC("license") = "GPL";
