from gen import *
put("00_base.json",doc(base()))
# 1 async device
def asyncs(events,cats=("kernel",),style="be"):
    o=[];n=0
    for e in events:
        if e.get("cat") in cats:
            n+=1; b=dict(e); b.pop("dur"); b["ph"]=style[0]; f={k:e[k] for k in("cat","name","pid","tid")}; f["ph"]=style[1]; f["ts"]=e["ts"]+e["dur"]
            if style=="be": b["id"]=f["id"]=hex(n)
            o+= [b,f]
        else: o.append(e)
    o.sort(key=lambda e:e["ts"]); return o
put("01_async_be.json",doc(asyncs(base())))
put("02_BE_device.json",doc(asyncs(base(),style="BE")))
ev2=asyncs(base()); 
for e in ev2:
    if e["ph"] in "be": e.pop("args",None); e["id2"]={"local":e.pop("id")}
put("03_async_id2_noargs.json",doc(ev2))
# unitrace
class U(D): rt="cpu_op"; launch="zeCommandListAppendLaunchKernel"; sync="zeCommandQueueSynchronize"; kcat="gpu_op"; comm="oneccl_allreduce_kernel"; kern="gemm_kernel[SIMD32]"
o=[{"ph":"M","name":"process_name","pid":100,"ts":0,"args":{"name":"HOST<node1>"}},{"ph":"M","name":"process_name","pid":200,"ts":0,"args":{"name":"DEVICE<node1>[0000:18:00.0]"}}]
for e in base(U,marks=False,data=None):
    if e["cat"]=="cpu_op" and e["name"].startswith(("aten","c10d")): continue
    a=e["args"]; c=a.get("correlation"); e["args"]={"id":str(c)}
    if e["cat"]=="gpu_op": e["pid"]=200
    o.append(e)
put("04_unitrace.json",{"traceEvents":o})
class RO(D): rt="cuda_runtime"; launch="hipLaunchKernel"; sync="hipDeviceSynchronize"; comm="ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"; kern="Cijk_Alik_Bljk_BBS_BH_MT256x256x32_MI32x32x8x1"; dev="AMD Instinct MI300X"
put("05_rocm.json",doc(base(RO),d=RO))
class RO2(RO): rt="hip_runtime"; launch="hipExtModuleLaunchKernel"
put("06_rocm_hiprt.json",doc(base(RO2),d=RO2))
class X(D): rt="xpu_runtime"; launch="urEnqueueKernelLaunch"; sync="urQueueFinish"; comm="oneccl_allreduce_ring"; backend="xccl"; dev="Intel(R) Data Center GPU Max 1550"
put("07_xpu.json",doc(base(X),d=X))
class X2(X): launch="zeCommandListAppendLaunchKernel"; sync="zeEventHostSynchronize"
put("08_xpu_ze.json",doc(base(X2),d=X2))
class M(D): rt="mtia_runtime"; launch="runtime_launch"; sync="runtime_sync"; kcat="mtia_ccp_events"; comm="hccl_allreduce"; dev="MTIA"
put("09_mtia.json",doc(base(M),d=M))
class H(D): rt="hpu_runtime"; launch="synLaunch"; sync="synDeviceSynchronize"; kcat="hpu_op"; comm="hcclAllReduce"; backend="hccl"; dev="HL-225"; kern="node_14_gemm"
put("10_hpu.json",doc(base(H),d=H))
# HL trace: pids names, no cat
o=[]
for e in base(H,marks=False):
    e=dict(e); c=e.pop("cat"); 
    if c=="hpu_op": e["pid"]=2; e["tid"]={7:"MME",20:"NIC"}[e["tid"]] if False else e["tid"]
    e["args"]={}; o.append(e)
put("11_hl_trace.json",{"traceEvents":o+[{"ph":"M","name":"process_name","pid":2,"args":{"name":"Gaudi2 device 0"}},{"ph":"M","name":"thread_name","pid":2,"tid":7,"args":{"name":"MME"}},{"ph":"M","name":"thread_name","pid":2,"tid":20,"args":{"name":"NIC"}}]})
# ascend trace_view
o=[{"ph":"M","name":"process_name","pid":100,"args":{"name":"Python"}},{"ph":"M","name":"process_name","pid":3,"args":{"name":"Ascend Hardware"}},{"ph":"M","name":"process_name","pid":4,"args":{"name":"Communication"}}]
for e in base():
    e=dict(e);c=e.pop("cat")
    if c=="kernel" and "nccl" not in e["name"]: e["pid"]=3; e["name"]="MatMulV3"; e["args"]={"Model Id":1,"Task Type":"AI_CORE","Stream Id":7,"Task Id":1,"connection_id":e["args"]["correlation"]}
    elif c=="kernel":  e["pid"]=4; e["name"]="hcom_allReduce__123_0_1"; e["args"]={"connection_id":e["args"]["correlation"],"model id":1}
    elif c=="cuda_runtime": e["name"]="AscendCL@aclnnMatmul"; e["args"]={"Mode":"ACL_RTS","level":"acl","id":"x","connection_id":e["args"]["correlation"]}
    elif c=="cpu_op": e["cat"]="cpu_op"
    e["ts"]=f"{e['ts']:.3f}"; o.append(e)
put("12_ascend/trace_view.json",o)
