/* Cases whose outputs are the same wherever their calls go. Each runs in a process of its own, in a directory that it made itself. */
#ifndef SAME_H
#define SAME_H
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A call with what it returns, or its error. */
#define T(call) told(__func__, __LINE__, #call, (errno = 0, (long)(call)))
/* Something that is so or not. */
#define IS(what) is(__func__, __LINE__, #what, (what) ? 1 : 0)

long told(const char *where, int line, const char *call, long got);
void is(const char *where, int line, const char *what, int right);
/* A name in the case's directory, as the program was told to write it: relative, or from the root. */
const char *P(const char *name);
/* The case's directory from the root. */
extern char here[PATH_MAX];
/* Into the case's directory; names are as before. */
int go_there(void);
/* What lstat shows, but for times, blocks and numbers. */
void show(const char *name);
/* What fstat shows. */
void fshow(int fd);
/* How many bytes, and which. */
void content(const char *name);
void fcontent(int fd);
/* A directory's names in order, with their types. */
void list(const char *name);
/* A new file with these bytes. */
void make(const char *name, const char *text);
/* Waits for a child, and says how it ended. */
void ended(pid_t child);
#define CHILD(...) do { fflush(stdout); pid_t child_ = fork(); if (child_ == 0) { __VA_ARGS__; fflush(stdout); _exit(0); } ended(child_); } while (0)

typedef struct { const char *name; void (*run)(void); } test_case;
extern const test_case io_cases[], name_cases[], tree_cases[], process_cases[], special_cases[], library_cases[], thread_cases[];
#endif
