/* What the unquoted text of a field must be, so that a line with other text in front of it (a syslog header, a container's name, a
 * virtual host) is not read as fields that begin too early. Each rule accepts all that a server writes there. */
#ifndef ELF_FORMS_H
#define ELF_FORMS_H
#include "numbers.h"
#include "plan.h"

/* a.b.c.d, each at most 255. */
static inline int elf_is_ipv4(const uint8_t *p, const uint8_t *end) {
    unsigned parts = 0;
    if (end - p < 7 || end - p > 15) return 0;
    for (; p <= end; p++, parts++) {
        unsigned v = (uint8_t)(*p - '0'), d;
        if (v > 9) return 0;
        if ((d = (uint8_t)(*++p - '0')) <= 9) {
            v = v * 10 + d;
            if ((d = (uint8_t)(*++p - '0')) <= 9) v = v * 10 + d, p++;
        }
        if (v > 255 || (p < end && *p != '.')) return 0;
    }
    return p == end + 1 && parts == 4;
}

/* Eight groups of hexadecimal digits, fewer with "::", the last two as an IPv4 address or not; a zone after '%'. */
static int elf_is_ipv6(const uint8_t *p, const uint8_t *end) {
    int groups = 0, gap = 0;
    const uint8_t *zone = (const uint8_t *)memchr(p, '%', (size_t)(end - p));
    if (zone) end = zone;
    if (end - p < 2 || end - p > 45) return 0;
    if (p[0] == ':' && *++p != ':') return 0;  /* "::1" */
    while (p < end) {
        const uint8_t *q = p;
        while (q < end && (elf_digit(*q) || ((*q | 0x20) >= 'a' && (*q | 0x20) <= 'f'))) q++;
        if (q == p) {  /* the second colon of "::" */
            if (*q != ':' || gap++) return 0;
            p++;
            continue;
        }
        if (q < end && *q == '.') return elf_is_ipv4(p, end) && (gap ? groups <= 5 : groups == 6);
        groups++;
        if (q - p > 4 || (q < end && *q != ':') || q + 1 == end) return 0;
        p = q + 1;
    }
    return gap ? groups <= 7 : groups == 8;
}

/* Letters, digits, '-', '_' and points; the part after the last point has a letter. */
static int elf_is_host(const uint8_t *p, const uint8_t *end) {
    int letters = 0;
    if (p < end && end[-1] == '.') end--;
    if (p == end || end - p > 255) return 0;
    for (; p < end; p++) {
        if (*p == '.') {
            if (p + 1 == end || p[1] == '.') return 0;
            letters = 0;
        } else if ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z') letters = 1;
        else if (*p != '-' && *p != '_' && !elf_digit(*p)) return 0;
    }
    return letters;
}

/* An address, a host name, or "unix:" of a local socket. */
static int elf_is_client(const uint8_t *p, const uint8_t *end) {
    if (elf_is_ipv4(p, end) || elf_is_ipv6(p, end) || elf_is_host(p, end)) return 1;
    if (end - p > 2 && *p == '[' && end[-1] == ']') return elf_is_ipv6(p + 1, end - 1);
    return end - p >= 5 && !memcmp(p, "unix:", 5) && !memchr(p, ' ', (size_t)(end - p));
}

/* The first of a list of clients divided by ", " or ","; its end. */
static inline const uint8_t *elf_first_client(const uint8_t *p, const uint8_t *end) {
    const uint8_t *comma = (const uint8_t *)memchr(p, ',', (size_t)(end - p));
    return comma ? comma : end;
}

/* X-Forwarded-For in the client's place at the line's start, where no visitor can put an element in front. */
static int elf_are_clients(const uint8_t *p, const uint8_t *end) {
    for (;;) {
        const uint8_t *comma = elf_first_client(p, end);
        if (!elf_is_client(p, comma)) return 0;
        if (comma == end) return 1;
        p = comma + 1;
        while (p < end && *p == ' ') p++;
    }
}

static inline int elf_has_space(const uint8_t *p, const uint8_t *end) {
    for (; p < end; p++)
        if (*p == ' ' || *p == '\t') return 1;
    return 0;
}

/* Nothing in it looks like the text between two fields. */
static inline int elf_is_word(const uint8_t *p, const uint8_t *end) {
    for (; p < end; p++)
        if (*p == ' ' || *p == '\t' || *p == '|' || *p == '[' || *p == ']') return 0;
    return 1;
}

/* Has the text of an unquoted field its form? An ident (%l) other than "-" is remembered: no server writes one unless it asks the
 * client's machine for it, so that the user name behind it is then refused if it holds a space ("web 1.2.3.4 - - [17/May…"). */
static int elf_has_form(elf_state *s, const elf_field *f, const uint8_t *p, const uint8_t *end) {
    switch (f->form) {
        case FORM_WORD: return elf_is_word(p, end);
        case FORM_CLIENT: return (end - p == 1 && *p == '-') || (f->index ? elf_is_client(p, end) : elf_are_clients(p, end));
        case FORM_IDENT:
            s->ident = !(end - p == 1 && *p == '-');
            return p < end && !elf_has_space(p, end);
        case FORM_USER: return p < end && !(s->ident && elf_has_space(p, end));
        default: return 1;
    }
}
#endif
