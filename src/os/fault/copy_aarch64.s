// size_t copy(void *destination /* x0 */, const void *source /* x1 */, size_t length /* x2 */)
// -> bytes not copied. x2 counts the remaining bytes and decreases only after they are stored;
// a fault between `_start` and `_end` continues at `_landing`. See copy_x86_64.s.

    .text
    .p2align 6
    .hidden pagestream_copy_plain
    .globl pagestream_copy_plain
    .type pagestream_copy_plain, %function
pagestream_copy_plain:
    .hidden pagestream_copy_start
    .globl pagestream_copy_start
pagestream_copy_start:
    .cfi_startproc
    cmp x2, #64
    b.lo 3f
2:  ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    stp q0, q1, [x0]
    stp q2, q3, [x0, #32]
    add x1, x1, #64
    add x0, x0, #64
    sub x2, x2, #64
    cmp x2, #64
    b.hs 2b
3:  cmp x2, #8
    b.lo 4f
    ldr x3, [x1]
    str x3, [x0]
    add x1, x1, #8
    add x0, x0, #8
    sub x2, x2, #8
    b 3b
4:  cbz x2, pagestream_copy_landing
    ldrb w3, [x1]
    strb w3, [x0]
    add x1, x1, #1
    add x0, x0, #1
    sub x2, x2, #1
    b 4b
    .hidden pagestream_copy_landing
    .globl pagestream_copy_landing
pagestream_copy_landing:
    mov x0, x2
    ret
    .cfi_endproc
    .size pagestream_copy_plain, . - pagestream_copy_plain
    .hidden pagestream_copy_end
    .globl pagestream_copy_end
pagestream_copy_end:
