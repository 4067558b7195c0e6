// size_t copy(void *destination /* rdi */, const void *source /* rsi */, size_t length /* rdx */)
// -> bytes not copied.
//
// In each routine rcx counts the remaining bytes, and decreases only after they are stored.
// A fault anywhere between `_start` and `_end` can therefore continue at `_landing`, which returns
// rcx: at most one block of copied bytes is reported as missing. No routine
// touches the stack or a callee-saved register.
//
// We avoid `rep movsb`, although it is as fast at most lengths and alignments: on Zen 3 and 4 its speed
// drops to a tenth if the destination lies a little ahead of the source within a page
// (https://sourceware.org/bugzilla/show_bug.cgi?id=30994).

    .text

    .p2align 6
    .hidden pagestream_copy_plain
    .globl pagestream_copy_plain
    .type pagestream_copy_plain, @function
pagestream_copy_plain:
    .hidden pagestream_copy_start
    .globl pagestream_copy_start
pagestream_copy_start:
    .cfi_startproc
    mov rcx, rdx
    cmp rcx, 64
    jb 4f
    .p2align 5
2:  movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    sub rcx, 64
    cmp rcx, 64
    jae 2b
    test rcx, rcx
    jz 3f
    // The tail: the last 64 bytes again, although some of them are copied already.
    movups xmm0, [rsi + rcx - 64]
    movups xmm1, [rsi + rcx - 48]
    movups xmm2, [rsi + rcx - 32]
    movups xmm3, [rsi + rcx - 16]
    movups [rdi + rcx - 64], xmm0
    movups [rdi + rcx - 48], xmm1
    movups [rdi + rcx - 32], xmm2
    movups [rdi + rcx - 16], xmm3
    xor ecx, ecx
3:
    .hidden pagestream_copy_landing
    .globl pagestream_copy_landing
pagestream_copy_landing:
    mov rax, rcx
    ret
4:  cmp rcx, 8
    jb 6f
5:  mov rax, [rsi]
    mov [rdi], rax
    add rsi, 8
    add rdi, 8
    sub rcx, 8
    cmp rcx, 8
    jae 5b
6:  test rcx, rcx
    jz 3b
7:  mov al, [rsi]
    mov [rdi], al
    add rsi, 1
    add rdi, 1
    sub rcx, 1
    jnz 7b
    jmp 3b
    .cfi_endproc
    .size pagestream_copy_plain, . - pagestream_copy_plain
    .hidden pagestream_copy_end
    .globl pagestream_copy_end
pagestream_copy_end:

    // 32-byte vectors. length must be at least 128.
    .p2align 6
    .hidden pagestream_copy_avx
    .globl pagestream_copy_avx
    .type pagestream_copy_avx, @function
pagestream_copy_avx:
    .hidden pagestream_copy_avx_start
    .globl pagestream_copy_avx_start
pagestream_copy_avx_start:
    .cfi_startproc
    mov rcx, rdx
    .p2align 5
2:  vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqu [rdi], ymm0
    vmovdqu [rdi + 32], ymm1
    vmovdqu [rdi + 64], ymm2
    vmovdqu [rdi + 96], ymm3
    sub rsi, -128
    sub rdi, -128
    add rcx, -128
    cmp rcx, 128
    jae 2b
    test rcx, rcx
    jz 3f
    vmovdqu ymm0, [rsi + rcx - 128]
    vmovdqu ymm1, [rsi + rcx - 96]
    vmovdqu ymm2, [rsi + rcx - 64]
    vmovdqu ymm3, [rsi + rcx - 32]
    vmovdqu [rdi + rcx - 128], ymm0
    vmovdqu [rdi + rcx - 96], ymm1
    vmovdqu [rdi + rcx - 64], ymm2
    vmovdqu [rdi + rcx - 32], ymm3
    xor ecx, ecx
3:
    .hidden pagestream_copy_avx_landing
    .globl pagestream_copy_avx_landing
pagestream_copy_avx_landing:
    vzeroupper
    mov rax, rcx
    ret
    .cfi_endproc
    .size pagestream_copy_avx, . - pagestream_copy_avx
    .hidden pagestream_copy_avx_end
    .globl pagestream_copy_avx_end
pagestream_copy_avx_end:
