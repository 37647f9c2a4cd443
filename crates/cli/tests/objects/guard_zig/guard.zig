//! The plug-in of `bpf new` in Zig 0.17.1: `zig build-obj guard.zig -target bpfel-freestanding -mcpu=v3 -O ReleaseSmall
//! -fno-strip`, then `llvm-strip-19 -g`.
const Request = extern struct {
    client: u32,
    cost: u32,
    path: [*]const u8,
    path_end: [*]const u8,
};

const Lru = extern struct {
    type: ?*const [9]i32 = null,
    max_entries: ?*const [4096]i32 = null,
    key: ?*const u32 = null,
    value: ?*const u64 = null,
};

export var seen: Lru linksection(".maps") = .{};

extern fn say(text: [*]const u8, len: u64) void;
extern fn price(client: u32) u32;

const lookup: *align(1) const fn (map: *const anyopaque, key: *const anyopaque) callconv(.c) ?*u64 = @ptrFromInt(1);
const update: *align(1) const fn (map: *const anyopaque, key: *const anyopaque, value: *const anyopaque, flags: u64) callconv(.c) i64 = @ptrFromInt(2);

export fn guard(request: *Request) linksection("request/guard") c_int {
    const client = request.client;
    if (@intFromPtr(request.path) + 1 <= @intFromPtr(request.path_end) and request.path[0] == '/')
        request.cost = price(client);
    const one: u64 = 1;
    const count = lookup(&seen, &client) orelse {
        _ = update(&seen, &client, &one, 0);
        return 0;
    };
    if (@atomicRmw(u64, count, .Add, 1, .seq_cst) < 3) return 0;
    const text = "one too many";
    say(text, text.len);
    return 1;
}
