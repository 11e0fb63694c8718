"""Web servers: what is usually added to nginx's and Apache's combined format, and other servers' own logs."""

from __future__ import annotations

from typing import Any

NGINX = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'
_APACHE = '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"'
_NGINX_LOG = "https://nginx.org/en/docs/http/ngx_http_log_module.html"
_APACHE_LOG = "https://httpd.apache.org/docs/2.4/mod/mod_log_config.html"
GUNICORN = (
    '{client_ip:text} {ident} {user} [{time:clf}] "{request}" {status} {bytes} "{referer}" "{user_agent}"'
)
"""Behind a Unix socket its client is empty."""
_SECONDS = r"[0-9]+\.[0-9]{3}"
_UPSTREAM = rf"(?:-|{_SECONDS}(?:(?:, | : ){_SECONDS})*)"

TABLES: dict[str, dict[str, Any]] = {
    "nginx_timed": {
        "summary": "nginx: combined and `$request_time`",
        "source": _NGINX_LOG,
        "nginx": f"{NGINX} $request_time",
        "like": rf'.*" {_SECONDS}$',
        "guess": True,
    },
    "nginx_timed_upstream": {
        "summary": "nginx: combined, `$request_time` and `$upstream_response_time`",
        "source": _NGINX_LOG,
        "nginx": f"{NGINX} $request_time $upstream_response_time",
        "like": rf'.*" {_SECONDS} {_UPSTREAM}$',
        "guess": True,
    },
    "nginx_main_timed": {
        "summary": "nginx: combined, `$http_x_forwarded_for` and `$request_time`",
        "source": _NGINX_LOG,
        "nginx": f'{NGINX} "$http_x_forwarded_for" $request_time',
        "like": rf'.*" "[^"]*" {_SECONDS}$',
        "guess": True,
    },
    "nginx_main_upstream": {
        "summary": "nginx: combined, `$http_x_forwarded_for`, `$request_time` and `$upstream_response_time`",
        "source": _NGINX_LOG,
        "nginx": f'{NGINX} "$http_x_forwarded_for" $request_time $upstream_response_time',
        "like": rf'.*" "[^"]*" {_SECONDS} {_UPSTREAM}$',
        "guess": True,
    },
    "nginx_upstream_time": {
        "summary": "nginx: combined and `rt=… uct=… uht=… urt=…`, as F5's articles time upstreams",
        "source": "https://www.f5.com/company/blog/nginx/using-nginx-logging-for-application-performance-monitoring",
        "nginx": f'{NGINX} rt=$request_time uct="$upstream_connect_time" uht="$upstream_header_time"'
        ' urt="$upstream_response_time"',
    },
    "nginx_upstream_time_bare": {
        "summary": "nginx: combined and `rt=… uct=… uht=… urt=…` without quotes",
        "source": "https://www.f5.com/company/blog/nginx/using-nginx-logging-for-application-performance-monitoring",
        "nginx": f"{NGINX} rt=$request_time uct=$upstream_connect_time uht=$upstream_header_time urt=$upstream_response_time",
    },
    "nginx_timed_pipe": {
        "summary": "nginx: combined, `$request_time`, `$upstream_response_time` and `$pipe`",
        "source": _NGINX_LOG,
        "nginx": f"{NGINX} $request_time $upstream_response_time $pipe",
        "like": rf'.*" {_SECONDS} {_UPSTREAM} [.p]$',
        "guess": True,
    },
    "nginx_main_ext": {
        "summary": "nginx: `main_ext` of NGINX Amplify and of many tutorials",
        "source": "https://docs.nginx.com/nginx-amplify/metrics-metadata/additional-nginx-metrics/",
        "nginx": f'{NGINX} "$http_x_forwarded_for" "$host" sn="$server_name" rt=$request_time ua="$upstream_addr"'
        ' us="$upstream_status" ut="$upstream_response_time" ul="$upstream_response_length" cs=$upstream_cache_status',
    },
    "nginx_gzip": {
        "summary": 'nginx: combined and `"$gzip_ratio"`, the example of nginx\'s manual',
        "source": _NGINX_LOG,
        "nginx": f'{NGINX} "$gzip_ratio"',
        "like": r'.*" "(?:-|[0-9]+\.[0-9]{2})"$',
        "proof": r'.*" "[0-9]+\.[0-9]{2}"$',
        "guess": True,
    },
    "gitlab_nginx": {
        "summary": "GitLab's bundled nginx (gitlab_access.log): combined and `$gzip_ratio`",
        "source": "https://docs.gitlab.com/omnibus/settings/nginx/",
        "nginx": f"{NGINX} $gzip_ratio",
        "like": r'.*" (?:-|[0-9]+\.[0-9]{2})$',
        "guess": True,
    },
    "nginx_proxy_manager": {
        "summary": "Nginx Proxy Manager's proxy-host access logs",
        "source": "https://github.com/NginxProxyManager/nginx-proxy-manager/blob/develop/docker/rootfs/etc/nginx/nginx.conf",
        "nginx": '[$time_local] $upstream_cache_status $upstream_status $status - $request_method $scheme $host "$request_uri"'
        " [Client $remote_addr] [Length $body_bytes_sent] [Gzip $gzip_ratio] [Sent-to $server]"
        ' "$http_user_agent" "$http_referer"',
    },
    "nginx_proxy_manager_standard": {
        "summary": "Nginx Proxy Manager's logs of redirections, dead hosts and its fallback",
        "source": "https://github.com/NginxProxyManager/nginx-proxy-manager/blob/develop/docker/rootfs/etc/nginx/nginx.conf",
        "nginx": '[$time_local] $status - $request_method $scheme $host "$request_uri" [Client $remote_addr]'
        ' [Length $body_bytes_sent] [Gzip $gzip_ratio] "$http_user_agent" "$http_referer"',
    },
    "jetty_timed": {
        "summary": "Jetty: combined and its latency, milliseconds, with the spaces of Jetty up to 9.2; without them, and from"
        " Tomcat before 10.1 (combined and `%D`), such lines look like `apache_timed`",
        "source": "https://wiki.eclipse.org/Jetty/Tutorial/RequestLog",
        "line": '{client_ip} {ident} {user= - } [{time:clf}] "{request}" {status} {bytes} "{referer}" "{user_agent}"'
        " {request_time:ms}",
        "time_is": "start",
        "like": r'\S+ -  -  \[.*" [0-9]+$',
    },
    "apache_vhost_timed": {
        "summary": "Apache: vhost_combined and `%D`, microseconds",
        "source": _APACHE_LOG,
        "apache": f"%v:%p {_APACHE} %D",
        "like": r'[^\s\[]+:[0-9]+ [^\s:]\S* .*" [0-9]+$',
        "guess": True,
    },
    "apache_timed": {
        "summary": "Apache: combined and `%D`, microseconds",
        "source": _APACHE_LOG,
        "apache": f"{_APACHE} %D",
        "like": r'.*" [0-9]+$',
        "guess": True,
    },
    "apache_combinedio": {
        "summary": "Apache: `combinedio` of its httpd.conf, combined and `%I %O`",
        "source": "https://httpd.apache.org/docs/2.4/mod/mod_logio.html",
        "apache": f"{_APACHE} %I %O",
        "like": r'.*" [0-9]+ [0-9]+$',
        "guess": True,
    },
    "apache_timed_slash": {
        "summary": "Apache: combined and `%T/%D`, seconds and microseconds",
        "source": _APACHE_LOG,
        "apache": f"{_APACHE} %T/%D",
        "like": r'.*" [0-9]+/[0-9]+$',
        "guess": True,
    },
    "apache_common_timed": {
        "summary": "Apache and Tomcat: common and `%D`, microseconds; Tomcat before 10.1 has milliseconds, `tomcat_timed`",
        "source": _APACHE_LOG,
        "apache": '%h %l %u %t "%r" %>s %b %D',
        "like": r'[^"]*\] "[^"]*" [0-9]{3} (?:[0-9]+|-) [0-9]+$',
        "guess": True,
    },
    "tomcat_timed": {
        "summary": "Tomcat before 10.1: common and `%D`, milliseconds; its lines look like `apache_common_timed`",
        "source": "https://tomcat.apache.org/tomcat-9.0-doc/config/valve.html#Access_Log_Valve",
        "line": '{client_ip} {ident} {user} [{time:clf}] "{request}" {status} {bytes} {request_time:ms}',
        "detected": False,
    },
    "gunicorn_timed": {
        "summary": "gunicorn: combined and `%(L)s`, seconds with six decimals",
        "source": "https://docs.gunicorn.org/en/stable/settings.html#access-log-format",
        "line": f"{GUNICORN} {{request_time}}",
        "like": r'.*" [0-9]+\.[0-9]{6}$',
    },
    "icecast": {
        "summary": "Icecast: combined and the seconds for which a listener stayed; its lines look like `apache_timed`",
        "source": "https://icecast.org/docs/icecast-2.4.1/config-file.html",
        "apache": f"{_APACHE} %T",
        "time_is": "end",
        "detected": False,
    },
    "lighttpd": {
        "summary": "lighttpd's default: combined with the host in the second place",
        "source": "https://redmine.lighttpd.net/projects/lighttpd/wiki/Mod_accesslog",
        "line": '{client_ip} {host:host} {user} [{time:clf}] "{request}" {status=0} {bytes} "{referer}" "{user_agent}"',
        "like": r"\S+ (?:[\w-]+\.[\w.-]+|localhost|\[[0-9a-f:.]+\])(?::[0-9]+)? \S+ \[",
        "guess": True,
    },
    "host_combined": {
        "summary": "Combined behind the host without its port (`%v`, `$host`)",
        "source": _APACHE_LOG,
        "apache": f"%v {_APACHE}",
        "like": r"[^\s:\[,]+ [0-9a-f.:]+ \S+ \S+ \[",  # a comma: X-Forwarded-For in the client's place
    },
    "tomcat": {
        "summary": "Tomcat's access log valve with the pattern `common`, its default: the same as `common`, at the request's end",
        "source": "https://tomcat.apache.org/tomcat-10.1-doc/config/valve.html#Access_Log_Valve",
        "apache": '%h %l %u %t "%r" %s %b',
        "time_is": "end",
        "detected": False,
    },
    "jetty": {
        "summary": "Jetty's extended NCSA log: the same as `combined`, with all bytes sent",
        "source": "https://jetty.org/docs/jetty/12/operations-guide/modules/standard.html",
        "apache": '%h %l %u %t "%r" %s %O "%{Referer}i" "%{User-Agent}i"',
        "detected": False,
    },
}
