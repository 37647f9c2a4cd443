// An arena: a hash table, a list and an allocator in it, in the shapes that programs keep there.
//
// mcpu: v4
//
// Each walk over a list is bounded by may_goto, in a function (and so with a counter) of its own.
//
// Everything is deterministic, so that the kernel and every engine here must come to the same results: all are added up
// in `result`, and returned.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __arena __attribute__((address_space(1)))
#define __noinline __attribute__((noinline))
#define can_loop                                                                                                       \
    ({                                                                                                                 \
        __label__ out, next;                                                                                           \
        int more = 1;                                                                                                  \
        asm volatile goto("may_goto %l[out]" : : : : out);                                                             \
        goto next;                                                                                                     \
    out:                                                                                                               \
        more = 0;                                                                                                      \
    next:                                                                                                              \
        more;                                                                                                          \
    })

#define PAGE 4096
#define PAGES 100

struct {
    __uint(type, 33);
    __uint(map_flags, 1 << 10);
    __uint(max_entries, PAGES);
} arena SEC(".maps");

extern void __arena *bpf_arena_alloc_pages(void *map, void __arena *address, u32 pages, int node, u64 flags)
    SEC(".ksyms");
extern void bpf_arena_free_pages(void *map, void __arena *address, u32 pages) SEC(".ksyms");

u64 result;

// In the arena, before everything that is allocated.
struct node {
    struct node __arena *next;
    u32 key;
    u32 used;
    u64 value;
};

#define BUCKETS 16
struct node __arena *__arena buckets[BUCKETS];
u8 __arena *__arena fresh;
u32 __arena left;
struct node __arena *__arena unused;
u64 __arena greeting = 0x1122334455667788;

static struct node __arena *take(void) {
    struct node __arena *node = unused;
    if (node) {
        unused = node->next;
        return node;
    }
    if (left < sizeof(struct node)) {
        fresh = bpf_arena_alloc_pages(&arena, 0, 1, -1, 0);
        if (!fresh)
            return 0;
        left = PAGE;
    }
    node = (struct node __arena *)fresh;
    fresh += sizeof(struct node);
    left -= sizeof(struct node);
    return node;
}

static u32 hash(u32 key) {
    return key * 2654435761u >> 26;
}

static __noinline struct node __arena *find(u32 key) {
    struct node __arena *node = buckets[hash(key) % BUCKETS];
    while (node && can_loop) {
        if (node->key == key)
            return node;
        node = node->next;
    }
    return 0;
}

static __noinline int put(u32 key, u64 value) {
    struct node __arena *node = find(key);
    if (!node) {
        node = take();
        if (!node)
            return -1;
        struct node __arena *__arena *bucket = &buckets[hash(key) % BUCKETS];
        node->key = key;
        node->used = 0;
        node->next = *bucket;
        *bucket = node;
    }
    node->value = value;
    __sync_fetch_and_add(&node->used, 1);
    return 0;
}

static __noinline int drop(u32 key) {
    struct node __arena *__arena *link = &buckets[hash(key) % BUCKETS];
    while (*link && can_loop) {
        struct node __arena *node = *link;
        if (node->key == key) {
            *link = node->next;
            node->next = unused;
            unused = node;
            return 0;
        }
        link = &node->next;
    }
    return -1;
}

// A table of a hundred numbers, half of which are removed and put back. (Each round is verified by itself, as its calls may be
// stopped: so there are not more.)
SEC("syscall")
int table(void *ctx) {
    (void)ctx;
    u64 sum = greeting;
    u32 i;
    for (i = 0; i < 140; i++)
        sum += put(i * 7 % 100, i) ? 1000000 : 1;
    for (i = 0; i < 100; i += 2)
        sum += drop(i) ? 2000000 : 3;
    for (i = 0; i < 120; i++) {
        struct node __arena *node = find(i);
        if (node)
            sum = sum * 31 + node->value * 5 + node->used;
    }
    for (i = 0; i < 100; i += 4)
        sum += put(i, i * 3) ? 4000000 : 5;
    for (i = 0; i < 100; i++) {
        struct node __arena *node = find(i);
        sum = sum * 33 + (node ? node->value : i);
    }
    result = sum;
    return 0;
}

// Every page, and what becomes of it.
SEC("syscall")
int pages(void *ctx) {
    (void)ctx;
    u64 sum = 0;
    u32 i;
    u64 __arena *first = 0;
    u64 __arena *last = 0;
    // One holds the variables above; others what `table` has allocated.
    for (i = 0; i < PAGES + 1; i++) {
        u64 __arena *page = bpf_arena_alloc_pages(&arena, 0, 1, -1, 0);
        if (!page)
            break;
        // A new page is empty.
        sum += page[0] + page[511];
        page[0] = i + 1;
        page[511] = (u64)last;
        if (!first)
            first = page;
        last = page;
    }
    sum += i;
    if (bpf_arena_alloc_pages(&arena, 0, 1, -1, 0))
        sum += 1000;
    // The pages are consecutive: two are freed, and allocated again as one piece.
    if (!last || !first)
        return 1;
    bpf_arena_free_pages(&arena, first, 2);
    // Again, which is nothing.
    bpf_arena_free_pages(&arena, first, 2);
    sum = sum * 31 + first[0];
    u64 __arena *two = bpf_arena_alloc_pages(&arena, 0, 2, -1, 0);
    sum = sum * 31 + (two == first);
    if (bpf_arena_alloc_pages(&arena, 0, 1, -1, 0))
        sum += 2000;
    if (two)
        sum = sum * 31 + two[0] + two[511] + two[1023];
    // Out of range, askew, none, too many, with a flag.
    sum = sum * 31 + !!bpf_arena_alloc_pages(&arena, last + 512, 1, -1, 0);
    sum = sum * 31 + !!bpf_arena_alloc_pages(&arena, first + 1, 1, -1, 0);
    sum = sum * 31 + !!bpf_arena_alloc_pages(&arena, 0, 0, -1, 0);
    sum = sum * 31 + !!bpf_arena_alloc_pages(&arena, 0, PAGES + 1, -1, 0);
    sum = sum * 31 + !!bpf_arena_alloc_pages(&arena, 0, 1, -1, 1);
    // The list of pages, from the last: the addresses in it are whole.
    while (last && can_loop) {
        sum = sum * 31 + last[0];
        u64 __arena *before = (u64 __arena *)last[511];
        bpf_arena_free_pages(&arena, last, 1);
        last = before;
        if (last == first)
            break;
    }
    bpf_arena_free_pages(&arena, first, 2);
    result = sum;
    return 0;
}

// Each size, signed and unsigned, and the atomics, at both ends of a page.
SEC("syscall")
int sizes(void *ctx) {
    (void)ctx;
    u64 sum = 0;
    u8 __arena *page = bpf_arena_alloc_pages(&arena, 0, 2, -1, 0);
    if (!page)
        return 1;
    u32 i;
    for (i = 0; i < 256; i++)
        page[PAGE - 128 + i] = i * 167 + 13;
    for (i = 0; i < 240; i++) {
        u8 __arena *at = page + PAGE - 128 + i;
        sum = sum * 31 + *at + *(short __arena *)at + *(u32 __arena *)at + *(u64 __arena *)at;
        sum = sum * 31 + *(signed char __arena *)at + *(unsigned short __arena *)at + *(int __arena *)at;
        *(u32 __arena *)at += i;
    }
    u64 __arena *word = (u64 __arena *)(page + PAGE);
    u32 __arena *half = (u32 __arena *)(page + PAGE - 4);
    // The kernel's JIT for x86-64 knows these in an arena, and no others that fetch.
    sum += __sync_fetch_and_add(word, 7);
    __sync_fetch_and_or(word, 0x8000);
    __sync_fetch_and_and(word, -3);
    __sync_fetch_and_xor(half, 0xff);
    sum += __sync_lock_test_and_set(half, 9);
    sum += __sync_val_compare_and_swap(word, *word, 5) + __sync_val_compare_and_swap(word, 4, 6) + *word + *half;
    bpf_arena_free_pages(&arena, page, 2);
    result = sum;
    return 0;
}

// Pages that are this run's alone: how many words were another's.
SEC("syscall")
int own(void *ctx) {
    (void)ctx;
    int wrong = 0;
    u32 i;
    u64 __arena *pages = bpf_arena_alloc_pages(&arena, 0, 3, -1, 0);
    if (!pages)
        return 0;
    u64 mark = (u64)pages + 1;
    for (i = 0; i < 1536; i += 16)
        pages[i] += mark;
    for (i = 0; i < 1536; i += 16)
        wrong += pages[i] != mark;
    bpf_arena_free_pages(&arena, pages, 3);
    return wrong;
}

char _license[] SEC("license") = "GPL";
