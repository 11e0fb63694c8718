/* The forms of envelopes: each reader finds the parts of one line's envelope, and where the message begins. */
#ifndef ELF_HEADS_H
#define ELF_HEADS_H
#include "parts.h"

enum { K_CRI, K_SYSLOG, K_KUBECTL, K_COMPOSE, K_STERN, K_DOCKER, K_JOURNALD, K_JSON };

typedef struct { const uint8_t *p; size_t n; } elf_text;  /* n == 0: absent */

typedef struct {
    elf_text time, host, program, container, stream;
    int yearless;            /* time: "May 17 10:05:00" */
    const uint8_t *message;  /* to the line's end; JSON: the value's first byte */
    int stream_number, part;
} elf_head;

static inline elf_text elf_between(const uint8_t *p, const uint8_t *end) {
    elf_text t = {p, (size_t)(end - p)};
    return t;
}

static inline const uint8_t *elf_until(const uint8_t *p, const uint8_t *end, uint8_t c) {
    const uint8_t *q = p < end ? (const uint8_t *)memchr(p, c, (size_t)(end - p)) : NULL;
    return q ? q : end;
}

static int elf_cri_head(const uint8_t *p, const uint8_t *end, elf_head *h) {
    if (!elf_is_digit(*p)) return 0;
    h->part = elf_part(p, end, &h->stream_number, &h->message);
    if (!h->part) return 0;
    h->time = elf_between(p, elf_until(p, end, ' '));
    h->stream = elf_between(h->time.p + h->time.n + 1, h->time.p + h->time.n + 7);
    return 1;
}

/* "May 17 10:05:00" or "May  7 10:05:00.123456": its end, or NULL. */
static const uint8_t *elf_bsd_end(const uint8_t *p, const uint8_t *end) {
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec", shape[] = "mmm d0 00:00:00";
    if (end - p < 16) return NULL;
    for (int i = 3; i < 15; i++) {
        int digit = elf_is_digit(p[i]);
        if (shape[i] == '0' ? !digit : shape[i] == 'd' ? !digit && p[i] != ' ' : p[i] != (uint8_t)shape[i]) return NULL;
    }
    int month = 0;
    while (month < 12 && memcmp(names + 3 * month, p, 3)) month++;
    if (month == 12) return NULL;
    p += 15;
    if (*p == '.')
        for (p++; p < end && elf_is_digit(*p);) p++;
    return p;
}

/* "1652781900.123456": its end, or NULL. */
static const uint8_t *elf_unix_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    while (q < end && elf_is_digit(*q)) q++;
    if (q - p != 10 || q == end || *q != '.') return NULL;
    for (q++; q < end && elf_is_digit(*q);) q++;
    return q;
}

/* The program of "nginx[123]: " or "nginx: " at p; the message begins behind it. 0 if it is none. */
static int elf_tag(const uint8_t *p, const uint8_t *end, elf_head *h) {
    const uint8_t *q = p;
    while (q < end && *q > ' ' && *q != ':' && *q != '[') q++;
    if (q == p || q == end) return 0;
    h->program = elf_between(p, q);
    if (*q == '[') {
        q = elf_until(q, end, ']');
        if (q == end) return 0;
        q++;
    }
    if (q == end || *q != ':') return 0;
    q++;
    if (q < end && *q != ' ') return 0;
    h->message = q + (q < end);
    return 1;
}

/* A word that ends at a space, at *p; "-" is absent. Moves *p behind the space. */
static int elf_word_head(const uint8_t **p, const uint8_t *end, elf_text *out) {
    const uint8_t *q = elf_until(*p, end, ' ');
    if (q == end || q == *p) return 0;
    *out = elf_between(*p, q);
    if (out->n == 1 && **p == '-') out->n = 0;
    *p = q + 1;
    return 1;
}

/* RFC 5424 behind its version: TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA [MSG] */
static int elf_syslog_5424(const uint8_t *p, const uint8_t *end, elf_head *h) {
    elf_text skipped;
    if (!elf_word_head(&p, end, &h->time) || (h->time.n && !elf_iso_end(h->time.p, end))) return 0;
    if (!elf_word_head(&p, end, &h->host) || !elf_word_head(&p, end, &h->program)) return 0;
    if (!elf_word_head(&p, end, &skipped) || !elf_word_head(&p, end, &skipped)) return 0;
    if (p == end) return 0;
    if (*p == '-') p++;
    else {
        if (*p != '[') return 0;
        while (p < end && *p == '[') {
            for (int quoted = 0; p < end && (quoted || *p != ']'); p++) {
                if (quoted && *p == '\\' && p + 1 < end) p++;
                else if (*p == '"') quoted = !quoted;
            }
            if (p == end) return 0;
            p++;
        }
    }
    if (p < end && *p != ' ') return 0;
    p += p < end;
    if (end - p >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3;  /* the MSG of RFC 5424 may begin with a byte order mark */
    h->message = p;
    return 1;
}

static int elf_syslog_head(const uint8_t *p, const uint8_t *end, elf_head *h) {
    const uint8_t *q;
    if (*p == '<') {
        for (q = p + 1; q < end && elf_is_digit(*q);) q++;
        if (q == p + 1 || q - p > 4 || q == end || *q != '>') return 0;
        p = q + 1;
    }
    if (end - p > 2 && p[0] == '1' && p[1] == ' ') return elf_syslog_5424(p + 2, end, h);
    if ((q = elf_bsd_end(p, end))) h->yearless = 1;
    else if (!(q = elf_iso_end(p, end)) && !(q = elf_unix_end(p, end))) return 0;
    h->time = elf_between(p, q);
    if (q == end || *q != ' ') return 0;
    p = q + 1;
    if (elf_tag(p, end, h)) return 1;  /* without a host: nginx's nohostname */
    return elf_word_head(&p, end, &h->host) && elf_tag(p, end, h);
}

/* A time with a fraction and a space at p: the place behind it; else p. */
static const uint8_t *elf_stamp(const uint8_t *p, const uint8_t *end, elf_head *h) {
    const uint8_t *q = elf_iso_end(p, end);
    if (!q || q == end || *q != ' ' || p[19] != '.') return p;
    h->time = elf_between(p, q);
    return q + 1;
}

/* kubectl logs --prefix --timestamps, docker logs -t: "[pod/NAME/CONTAINER] TIME message", one of the two at least */
static int elf_kubectl_head(const uint8_t *p, const uint8_t *end, elf_head *h) {
    const uint8_t *start = p;
    if (end - p > 5 && !memcmp(p, "[pod/", 5)) {
        const uint8_t *pod = p + 5, *slash = elf_until(pod, end, '/');
        if (slash == end || slash == pod) return 0;
        const uint8_t *close = elf_until(slash, end, ']');
        if (close == end || memchr(pod, ' ', (size_t)(close - pod)) || close + 1 == end || close[1] != ' ') return 0;
        h->host = elf_between(pod, slash);
        h->container = h->program = elf_between(slash + 1, close);
        p = close + 2;
    }
    h->message = elf_stamp(p, end, h);
    return h->message > start;
}

/* Behind the colour that a terminal was told at p, if any. */
static const uint8_t *elf_colour(const uint8_t *p, const uint8_t *end) {
    if (end - p < 3 || p[0] != 0x1b || p[1] != '[') return p;
    const uint8_t *q = p + 2;
    while (q < end && (elf_is_digit(*q) || *q == ';')) q++;
    return q < end && *q == 'm' ? q + 1 : p;
}

/* The end of a name of letters, digits and "-_." at p. */
static const uint8_t *elf_name(const uint8_t *p, const uint8_t *end) {
    while (p < end && (elf_is_digit(*p) || (uint8_t)((*p | 0x20) - 'a') < 26 || *p == '-' || *p == '_' || *p == '.')) p++;
    return p;
}

/* docker compose logs: "nginx-1  | message", with -t "nginx-1  | TIME message" */
static int elf_compose_head(const uint8_t *p, const uint8_t *end, elf_head *h) {
    p = elf_colour(p, end);
    const uint8_t *q = elf_name(p, end);
    if (q == p || q == end) return 0;
    h->container = h->program = elf_between(p, q);
    while (q < end && *q == ' ') q++;
    if (q == end || *q != '|') return 0;
    q = elf_colour(q + 1, end);
    if (q < end && *q != ' ') return 0;
    q += q < end;
    h->message = elf_stamp(q, end, h);
    return 1;
}

/* stern: "POD CONTAINER message", with -t "POD CONTAINER TIME message". A pod's name has a '-'. */
static int elf_stern_head(const uint8_t *p, const uint8_t *end, elf_head *h) {
    elf_text *names[2] = {&h->host, &h->container};
    for (int i = 0; i < 2; i++) {
        p = elf_colour(p, end);
        const uint8_t *q = elf_name(p, end);
        if (q == p || *p == '-') return 0;
        *names[i] = elf_between(p, q);
        q = elf_colour(q, end);
        if (q == end || *q != ' ') return 0;
        p = q + 1;
    }
    if (!memchr(h->host.p, '-', h->host.n)) return 0;
    h->program = h->container;
    h->message = elf_stamp(p, end, h);
    return 1;
}
#endif
