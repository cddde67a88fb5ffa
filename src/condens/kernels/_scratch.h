/* Scratch lives as long as its thread: fresh pages in every call would cost more than the
 * arithmetic. Where threads cannot tell of their end, it lives as long as the call. */

#if defined(__has_include)
#if __has_include(<pthread.h>)
#include <pthread.h>
#define KEPT
#endif
#endif

#ifdef KEPT
static _Thread_local char *scratch_start;
static _Thread_local size_t scratch_size;
static pthread_key_t scratch_key; /* its destructor frees a thread's scratch */

static int scratch_begin(void)
{
    return pthread_key_create(&scratch_key, free) == 0;
}

static char *scratch_memory(size_t bytes)
{
    if (bytes > scratch_size) {
        free(scratch_start);
        scratch_start = aligned_alloc(64, (bytes + 4095) / 4096 * 4096);
        scratch_size = scratch_start ? bytes : 0;
        if (pthread_setspecific(scratch_key, scratch_start)) {
            free(scratch_start);
            scratch_start = NULL, scratch_size = 0;
        }
    }
    return scratch_start;
}

static void scratch_done(char *memory)
{
    (void)memory;
}
#else
static int scratch_begin(void)
{
    return 1;
}

static char *scratch_memory(size_t bytes)
{
    return aligned_alloc(64, (bytes + 4095) / 4096 * 4096);
}

static void scratch_done(char *memory)
{
    free(memory);
}
#endif
