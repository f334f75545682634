/* What the C library makes of file calls. */
#include "same.h"
#include <aio.h>
#include <dlfcn.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <sys/resource.h>
#include <wordexp.h>

static struct stat s;

static void streams(void)
{
    char line[100];
    FILE *f = fopen(P("a"), "w+");
    for (int n = 0; n < 5000; n++)
        fprintf(f, "line %d\n", n);
    T(ftell(f));
    T(fseek(f, 5, SEEK_SET));
    T(getc(f));
    T(ungetc('X', f));
    T(getc(f));
    T((long)(fgets(line, sizeof line, f) != NULL));
    T(ftell(f));
    T(fseek(f, 0, SEEK_CUR));
    T(fputs("OVER", f));
    T(fseek(f, -10, SEEK_END));
    T((long)fread(line, 1, 100, f));
    T(feof(f));
    T(ftruncate(fileno(f), 1000));
    T(fseek(f, 0, SEEK_END));
    T(ftell(f));
    T(fclose(f));
    content("a");
    f = fopen(P("a"), "a+");
    T(ftell(f));
    T(getc(f));
    T(fseek(f, 0, SEEK_SET));
    T(fputs("appended", f));
    T(fflush(f));
    T(ftell(f));
    T(fclose(f));
    content("a");
    T(fopen(P("a"), "wx") == NULL);
    T(fopen(P("none"), "r+") == NULL);
    T(fopen(P("none/x"), "w") == NULL);
    f = fopen(P("a"), "r+");
    T(fputs("start", f));
    f = freopen(P("b"), "w", f);
    T(fputs("other", f));
    T(unlink(P("b")));
    T(fclose(f));
    content("a");
    int fd = T(open(P("c"), O_RDWR | O_CREAT, 0644));
    f = fdopen(fd, "w");
    FILE *again = fdopen(dup(fd), "r+");
    T(setvbuf(f, NULL, _IONBF, 0));
    T(fputs("unbuffered", f));
    T(fseek(again, 0, SEEK_SET));
    T((long)fread(line, 1, 100, again));
    T(dprintf(fd, " %d", 7));
    T(fclose(f));
    T(fputs("?", again));
    T(fclose(again));
    content("c");
    f = fopen(P("c"), "rme");
    T(fcntl(fileno(f), F_GETFD));
    char *got = NULL;
    size_t room = 0;
    T(getline(&got, &room, f));
    T(fclose(f));
    f = fopen(P("d"), "w");
    CHILD(fputs("child", f); T(fclose(f)));
    T(fputs("parent", f));
    T(fclose(f));
    content("d");
    f = tmpfile();
    T(fputs("temporary", f));
    T(fseek(f, 2, SEEK_SET));
    T(getc(f));
    T(fclose(f));
    T(remove(P("d")));
    T(mkdir(P("e"), 0755));
    T(remove(P("e")));
    T(remove(P("none")));
    freopen(P("out"), "w", stderr);
    fprintf(stderr, "to stderr\n");
    perror("told");
    content("out");
}

static void temporary(void)
{
    char name[PATH_MAX + 30];
    snprintf(name, sizeof name, "%s", P("file-XXXXXX"));
    int fd = T(mkstemp(name));
    T(strlen(name) - strlen(P("")));
    fshow(fd);
    T(write(fd, "x", 1));
    T(unlink(name));
    T(write(fd, "y", 1));
    fcontent(fd);
    snprintf(name, sizeof name, "%s", P("file-XXXXXX.txt"));
    T(mkostemps(name, 4, O_APPEND | O_CLOEXEC));
    T(unlink(name));
    snprintf(name, sizeof name, "%s", P("dir-XXXXXX"));
    T(mkdtemp(name) != NULL);
    T(stat(name, &s) ?: (long)s.st_mode);
    T(rmdir(name));
    snprintf(name, sizeof name, "%s", P("none/f-XXXXXX"));
    T(mkstemp(name));
    list(".");
}

static int walked(const char *path, const struct stat *stat, int type, struct FTW *f)
{
    printf("  %s %d %d %ld\n", path + f->base, type, f->level, S_ISDIR(stat->st_mode) ? 0 : (long)stat->st_size);
    return 0;
}

static int removes(const char *path, const struct stat *stat, int type, struct FTW *f)
{
    (void)stat, (void)type, (void)f;
    return remove(path);
}

static int fts_order(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static void trees(void)
{
    char text[PATH_MAX * 2];
    const char *dirs[] = {"t", "t/a", "t/a/b", "t/c"}, *files[] = {"t/1.txt", "t/a/2.txt", "t/a/b/3.c", "t/c/4.c", "t/c/.hidden"};
    for (int n = 0; n < 4; n++)
        T(mkdir(P(dirs[n]), 0755));
    for (int n = 0; n < 5; n++)
        make(files[n], files[n]);
    T(symlink("a", P("t/l")));
    T(symlink("none", P("t/c/broken")));
    FTS *tree = fts_open((char *[]){(char *)P("t"), NULL}, FTS_PHYSICAL, fts_order);
    for (FTSENT *e; (e = fts_read(tree));)
        printf("  %s %d %d\n", e->fts_level ? e->fts_name : "t", e->fts_info, e->fts_level);
    T(fts_close(tree));
    struct dirent **names;
    int n = T(scandir(P("t"), &names, NULL, alphasort));
    for (int i = 0; i < n; i++)
        printf("  %s\n", names[i]->d_name);
    glob_t g;
    T(glob(P("t/*/*.c"), 0, NULL, &g));
    for (size_t i = 0; i < g.gl_pathc; i++)
        printf("  %s\n", strrchr(g.gl_pathv[i], '/'));
    T(glob(P("t/x*"), 0, NULL, &g));
    T(glob(P("t/{a,c}/*"), GLOB_BRACE, NULL, &g) ?: (long)g.gl_pathc);
    T(realpath(P("t/l/b/../../c"), text) != NULL);
    printf("  %s\n", text + strlen(here));
    T(realpath(P("t/none"), text) != NULL);
    T(realpath(P("t/1.txt/x"), text) != NULL);
    char *canonical = canonicalize_file_name(P("t/l"));
    printf("  %s\n", canonical + strlen(here));
    T(nftw(P("t/a"), walked, 5, FTW_PHYS));
    T(nftw(P("t/a"), walked, 1, FTW_PHYS | FTW_DEPTH));
    T(nftw(P("t/a"), walked, 5, FTW_CHDIR));
    T(nftw(P("t"), removes, 5, FTW_PHYS | FTW_DEPTH));
    list(".");
    T(pathconf(P("."), _PC_PATH_MAX));
    T(pathconf(P("none"), _PC_NAME_MAX));
}

static void others(void)
{
    char text[100];
    static char image[4 << 20];
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    struct aiocb a = {.aio_fildes = fd, .aio_buf = "asynchronous", .aio_nbytes = 12, .aio_offset = 3};
    const struct aiocb *one[] = {&a};
    T(aio_write(&a));
    T(aio_suspend(one, 1, NULL));
    T(aio_return(&a));
    a.aio_buf = text;
    T(aio_read(&a));
    T(aio_suspend(one, 1, NULL));
    T(aio_return(&a));
    T(aio_fsync(O_SYNC, &a));
    T(aio_suspend(one, 1, NULL));
    T(aio_return(&a));
    fcontent(fd);
    unsigned long context = 0;
    T(syscall(SYS_io_setup, 4, &context));
    struct { uint64_t data; uint32_t key, flags; uint16_t op; int16_t prio; uint32_t fd; uint64_t buf, len; int64_t at; uint64_t r; uint32_t f, e; }
        io = {.op = 1, .fd = fd, .buf = (uint64_t)"native", .len = 6, .at = 0}, *list_of[] = {&io};
    struct { uint64_t data, obj; int64_t res, res2; } event;
    T(syscall(SYS_io_submit, context, 1, list_of));
    T(syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
    T(event.res);
    fcontent(fd);
    int from = open("/lib/x86_64-linux-gnu/libm.so.6", O_RDONLY), to = T(open(P("libcopy.so"), O_WRONLY | O_CREAT, 0755));
    ssize_t len = read(from, image, sizeof image);
    IS(write(to, image, len) == len);
    T(close(to));
    void *library = dlopen(P("libcopy.so")[0] == '/' ? P("libcopy.so") : "./libcopy.so", RTLD_NOW);
    if (!library && go_there() == 0)
        library = dlopen("./libcopy.so", RTLD_NOW);
    IS(library != NULL);
    double (*root)(double) = library ? (double (*)(double))dlsym(library, "sqrt") : NULL;
    IS(root && root(49) == 7);
    T(unlink(P("libcopy.so")));
    IS(root && root(64) == 8);
}

const test_case library_cases[] = {{"streams", streams}, {"temporary", temporary}, {"trees", trees}, {"others", others}, {NULL, NULL}};
