/* What the test programs check with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(ok)                                                                     \
    do {                                                                              \
        if (!(ok)) {                                                                  \
            fprintf(stderr, "line %d: %s (errno: %s)\n", __LINE__, #ok, strerror(errno)); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)
#define FAILS(call, number) CHECK((errno = 0, (call)) && errno == (number))
